"""Patterns of API keys by vendor: the one list that `redaction.py` searches for.

A kind is a name, a regular expression and the public page that describes it. To add one is to add a
line here: the tests draw keys from the expression and look for them in every spelling. The search
is fast where each expression begins with a letter, and its time linear where a repetition without
an upper bound (`{20,}+`) stands at the end, or in `WORDLIKE`, whose keys begin where a word does.
"""

from typing import NamedTuple


class KeyKind(NamedTuple):
    """`source` is an address without `https://`."""

    name: str
    pattern: str
    source: str


class NamedKey(NamedTuple):
    """A key that is known by the words before it. `sign` is what those end with, in lower case;
    `pattern` matches from there on, with the key as the group `key`."""

    name: str
    sign: str
    pattern: str
    source: str


_A, _D, _H = "[A-Za-z0-9]", "[A-Za-z0-9_-]", "[0-9a-f]"
_AWS = "docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html"
_DISCORD = "discord.com/developers/docs/reference"
_GITHUB = "docs.github.com/en/authentication/keeping-your-account-and-data-secure/about-authentication-to-github"
_GITLAB = "docs.gitlab.com/security/tokens"
_GITLEAKS = "github.com/gitleaks/gitleaks/blob/master/config/gitleaks.toml"
_GOOGLE = "cloud.google.com/docs/authentication/api-keys"
_RFC = "rfc-editor.org/rfc/rfc"
_SLACK = "docs.slack.dev/authentication/tokens"

# No word begins so: these are keys wherever they stand, also behind an escape that nobody knows.
DISTINCT = (
    KeyKind("Anthropic", rf"sk-ant-[a-z]{{3,5}}\d\d-{_D}{{20,}}+", "docs.anthropic.com/en/api/overview"),
    KeyKind("OpenAI project", rf"sk-(?:proj|svcacct|admin)-{_D}{{16,}}+", "platform.openai.com/docs/api-reference"),
    KeyKind("OpenRouter", rf"sk-or-v1-{_H}{{64}}", "openrouter.ai/docs/api-reference/authentication"),
    KeyKind("Langfuse secret", rf"sk-lf-{_H}{{8}}-[0-9a-f-]{{27}}", "langfuse.com/docs"),
    KeyKind("Groq", rf"gsk_{_A}{{40,}}+", "console.groq.com/docs/quickstart"),
    KeyKind("xAI", rf"xai-{_A}{{60,}}+", "docs.x.ai/docs/overview"),
    KeyKind("NVIDIA", rf"nvapi-{_D}{{40,}}+", "docs.nvidia.com/nim"),
    KeyKind("Hugging Face organisation", rf"api_org_{_A}{{30,}}+", _GITLEAKS),
    KeyKind("Perplexity", rf"pplx-{_A}{{40,}}+", "docs.perplexity.ai/getting-started"),
    KeyKind("Together", rf"tgp_v1_{_D}{{40,}}+", "docs.together.ai/docs/quickstart"),
    KeyKind("LangSmith", rf"lsv2_(?:pt|sk)_{_H}{{32}}_{_H}{{10}}", "docs.smith.langchain.com"),
    KeyKind("Pinecone", r"pcsk_[A-Za-z0-9_]{40,}+", "docs.pinecone.io/guides/projects/manage-api-keys"),
    KeyKind("Tavily", r"tvly-(?:dev-|prod-)?[A-Za-z0-9-]{28,}+", "docs.tavily.com"),
    KeyKind("E2B", rf"e2b_{_H}{{40}}", "e2b.dev/docs/api-key"),
    KeyKind("Jina", rf"jina_{_H}{{32}}{_D}{{28}}", "jina.ai/api-dashboard"),
    KeyKind("Daytona", rf"dtn_{_H}{{64}}", "www.daytona.io/docs"),
    KeyKind("W&B", rf"wandb_v1_{_D}{{40,}}+", "docs.wandb.ai/support/find_api_key"),
    KeyKind("GitHub", rf"gh[pousr]_{_A}{{16,}}+", _GITHUB),
    KeyKind("GitHub fine-grained", r"github_pat_[A-Za-z0-9_]{16,}+", _GITHUB),
    KeyKind("GitLab", rf"gl(?:pat|cbt|dt|rt|ptt|ft|agent|soat|oas)-{_D}{{16,}}+", _GITLAB),
    KeyKind("Atlassian", r"ATATT3[A-Za-z0-9_=-]{60,}+", _GITLEAKS),
    KeyKind("Bitbucket app", rf"ATBB{_A}{{32}}", _GITLEAKS),
    KeyKind("npm", rf"npm_{_A}{{36,}}+", "docs.npmjs.com/about-access-tokens"),
    KeyKind("PyPI", rf"pypi-AgE{_D}{{50,}}+", "docs.pypi.org/trusted-publishers"),
    KeyKind("RubyGems", rf"rubygems_{_H}{{48}}", "guides.rubygems.org/api-key-scopes"),
    KeyKind("Docker", rf"dckr_(?:pat|oat)_{_D}{{24,}}+", "docs.docker.com/security/access-tokens"),
    KeyKind("Sourcegraph", rf"sgp_(?:[A-Za-z]+_)?(?:{_H}{{16}}_)?{_H}{{40}}", "sourcegraph.com/docs/cli"),
    KeyKind("HashiCorp Vault", rf"hv[sbr]\.{_D}{{24,}}+", "developer.hashicorp.com/vault/docs/concepts/tokens"),
    KeyKind("Doppler", rf"dp\.(?:pt|ct|st|sa|scim|audit)\.{_A}{{40,}}+", "docs.doppler.com/reference"),
    KeyKind("Pulumi", rf"pul-{_H}{{40}}", "www.pulumi.com/docs/pulumi-cloud/access-management"),
    KeyKind("Linear", rf"lin_(?:api|oauth)_{_A}{{32,}}+", "linear.app/developers"),
    KeyKind("Notion", rf"ntn_{_A}{{40,}}+", "developers.notion.com/docs/authorization"),
    KeyKind("Postman", rf"PMAK-{_H}{{24}}-{_H}{{34}}", "learning.postman.com/docs"),
    KeyKind("Figma", rf"fig[dor]_{_D}{{36,}}+", "developers.figma.com/docs/rest-api"),
    KeyKind("Sentry", rf"sntry[us]_{_A}{{40,}}+", "docs.sentry.io/api/auth"),
    KeyKind("Grafana", rf"glsa_{_A}{{32}}_[0-9A-Fa-f]{{8}}", "grafana.com/docs/grafana/latest/administration"),
    KeyKind("New Relic", r"NRAK-[A-Z0-9]{27}", "docs.newrelic.com/docs/apis"),
    KeyKind("PostHog", rf"phx_{_A}{{40,}}+", "posthog.com/docs/api"),
    KeyKind("Airtable", rf"pat{_A}{{14}}\.{_H}{{64}}", "airtable.com/developers/web/guides/personal-access-tokens"),
    KeyKind("Supabase", rf"sb(?:p_{_H}{{40}}|_secret_{_D}{{20,}}+)", "supabase.com/docs/guides/api/api-keys"),
    KeyKind("PlanetScale", r"pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_.=-]{32,}+", _GITLEAKS),
    KeyKind("Databricks", rf"dapi{_H}{{32}}(?:-\d)?", "docs.databricks.com/en/dev-tools/auth/pat.html"),
    KeyKind("DigitalOcean", rf"do[opr]_v1_{_H}{{64}}", "docs.digitalocean.com/reference/api"),
    KeyKind("Heroku", rf"HRKU-{_D}{{30,}}+", "devcenter.heroku.com/articles/authentication"),
    KeyKind("Fly.io", rf"fo1_{_D}{{43}}|fm[12][ar]?_[A-Za-z0-9+/]{{100,}}+", "fly.io/docs/security/tokens"),
    KeyKind("Netlify", rf"nfp_{_A}{{36,}}+", "docs.netlify.com/api/get-started"),
    KeyKind("Tailscale", r"tskey-[a-z]+-[A-Za-z0-9-]{16,}+", "tailscale.com/kb/1085/auth-keys"),
    KeyKind("AWS Bedrock", r"ABSK[A-Za-z0-9+/]{100,}+", _AWS),
    KeyKind("AWS session", r"IQoJb3JpZ2lu[A-Za-z0-9+/]{80,}+", _AWS),
    KeyKind("AWS session, older", r"FwoGZXIvYXdz[A-Za-z0-9+/]{80,}+", _AWS),
    KeyKind("Google", rf"AIza{_D}{{35}}", _GOOGLE),
    KeyKind("Google OAuth secret", rf"GOCSPX-{_D}{{28}}", "developers.google.com/identity/protocols/oauth2"),
    KeyKind("Google OAuth access", rf"ya29\.{_D}{{20,}}+", "developers.google.com/identity/protocols/oauth2"),
    KeyKind("Google OAuth refresh", rf"1//0{_D}{{40,}}+", "developers.google.com/identity/protocols/oauth2"),
    KeyKind("Slack app", rf"xapp-\d-{_A}{{8,12}}-\d{{8,16}}-{_A}{{20,}}+", _SLACK),
    KeyKind("Slack webhook", r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_+-]{30,}+", _SLACK),
    KeyKind("Discord webhook", rf"discord(?:app)?\.com/api/webhooks/\d{{15,20}}/{_D}{{50,}}+", _DISCORD),
    KeyKind("Teams webhook", r"webhook\.office\.com/webhookb2/[A-Za-z0-9@/-]{60,}+", _GITLEAKS),
    KeyKind("SendGrid", rf"SG\.{_D}{{16,32}}+\.{_D}{{16,64}}+", "www.twilio.com/docs/sendgrid"),
    KeyKind("Stripe", rf"sk_(?:live|test|prod)_{_A}{{12,}}+", "docs.stripe.com/keys"),
    KeyKind("Stripe restricted", rf"rk_(?:live|test|prod)_{_A}{{12,}}+", "docs.stripe.com/keys"),
    KeyKind("Stripe webhook", r"whsec_[A-Za-z0-9+/]{24,}+", "docs.stripe.com/webhooks"),
    KeyKind("Square", rf"sq0(?:atp|csp|idp)-{_D}{{22,}}+", "developer.squareup.com/docs/build-basics/access-tokens"),
    KeyKind("Shopify", rf"shp(?:at|ca|pa|ss)_{_H}{{32}}", "shopify.dev/docs/apps/build/authentication-authorization"),
    KeyKind("EasyPost", rf"EZ[AT]K{_A}{{54}}", "docs.easypost.com/docs/authentication"),
    KeyKind("age", r"AGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}", "github.com/FiloSottile/age"),
    KeyKind("1Password service", r"ops_eyJ[A-Za-z0-9+/]{100,}+", "developer.1password.com/docs/service-accounts"),
)  # fmt: skip

# Words, names and digests may begin so: these are keys where a word begins and they have a digit.
WORDLIKE = (
    KeyKind("OpenAI and who speaks its protocol", rf"sk-{_D}{{16,}}+", "platform.openai.com/docs/api-reference"),
    KeyKind("Hugging Face", rf"hf_{_A}{{20,}}+", "huggingface.co/docs/hub/security-tokens"),
    KeyKind("Replicate", rf"r8_{_A}{{30,}}+", "replicate.com/docs/topics/security/api-tokens"),
    KeyKind("Fireworks", rf"fw_{_A}{{22,}}+", "docs.fireworks.ai/getting-started/quickstart"),
    KeyKind("Cerebras", rf"csk-{_A}{{40,}}+", "inference-docs.cerebras.ai/quickstart"),
    KeyKind("ElevenLabs", rf"sk_{_H}{{40,}}+", "elevenlabs.io/docs/api-reference/authentication"),
    KeyKind("Firecrawl", rf"fc-{_H}{{32}}", "docs.firecrawl.dev/introduction"),
    KeyKind("crates.io", rf"cio{_A}{{32}}", "doc.rust-lang.org/cargo/reference/registry-authentication.html"),
    KeyKind("NuGet", r"oy2[a-z0-9]{43}", "learn.microsoft.com/en-us/nuget/nuget-org/publish-a-package"),
    KeyKind("AWS", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])", _AWS),
    KeyKind("Alibaba Cloud", rf"LTAI{_A}{{16,26}}+", "www.alibabacloud.com/help/en/ram"),
    KeyKind("Tencent Cloud", rf"AKID{_A}{{28,}}+", "cloud.tencent.com/document/product/598/40488"),
    KeyKind("Azure application", r"[A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.-]{31,34}+", _GITLEAKS),
    KeyKind("Slack", r"xox[a-z]-[A-Za-z0-9-]{10,}+", _SLACK),
    KeyKind("Discord bot", rf"[MNO]{_D}{{23,27}}+\.{_D}{{6}}\.{_D}{{27,}}+", _DISCORD),
    KeyKind("Telegram bot", rf"\d{{8,10}}+:AA{_D}{{33}}", "core.telegram.org/bots/features"),
    KeyKind("Mailgun", rf"key-{_H}{{32}}", "documentation.mailgun.com/docs/mailgun/user-manual/api-key-mgmt"),
    KeyKind("Mailchimp", rf"{_H}{{32}}-us\d{{1,2}}", "mailchimp.com/developer/marketing/docs/fundamentals"),
    KeyKind("Twilio", rf"SK{_H}{{32}}", "www.twilio.com/docs/iam/api-keys"),
    KeyKind("Terraform Cloud", rf"{_A}{{14}}\.atlasv1\.{_D}{{60,}}+", "developer.hashicorp.com/terraform/cloud-docs"),
    KeyKind("Artifactory", rf"AKCp{_A}{{60,}}+", _GITLEAKS),
    KeyKind("JSON Web Token", rf"eyJ{_D}{{7,}}+\.{_D}{{8,}}+\.{_D}*+(?:\.{_D}++){{0,2}}+", _RFC + "7519"),
)  # fmt: skip

_GAP = r"[ \t+]{1,4}"  # a form writes a space as a plus
_IS = r"""["']?[ \t+]{0,2}[:=][ \t+]{0,2}["']?"""
_AWS_SECRET = "(?P<key>[A-Za-z0-9+/]{40})(?![A-Za-z0-9+/])"
_SCHEME = "(?i:token|apikey|key)"
_USER, _PASSWORD = r"""[^\s/:@"'<>\\?#]{0,256}+""", r"""(?P<key>[^\s/@"'<>\\]{1,1024}+)"""
_VALUE = r"(?P<key>[A-Za-z0-9._~+/=-]{8,}+)"
NAMED = (
    NamedKey("HTTP bearer", "bearer", rf"{_GAP}{_VALUE}", _RFC + "6750"),
    NamedKey("HTTP authorization", "authorization", rf"{_IS}(?:{_SCHEME}{_GAP})?{_VALUE}", _RFC + "9110"),
    NamedKey("HTTP header with a key", "api-key", rf"{_IS}{_VALUE}", "docs.anthropic.com/en/api/overview"),
    NamedKey("HTTP header with a token", "-token", rf"{_IS}(?P<key>[A-Za-z0-9._~+/=-]{{16,}}+)", _GITLAB),
    NamedKey("Azure subscription", "subscription-key", rf"{_IS}{_VALUE}", "learn.microsoft.com/azure/api-management"),
    NamedKey("Azure account", "accountkey", rf"={_VALUE}", "learn.microsoft.com/azure/storage"),
    NamedKey("Azure shared access", "accesskey", rf"={_VALUE}", "learn.microsoft.com/azure/service-bus"),
    NamedKey("Azure signature", "sig=", r"(?P<key>[A-Za-z0-9+/%]{40,}+=?)", "learn.microsoft.com/rest/api"),
    NamedKey("AWS secret", "secret_access_key", rf"{_IS}{_AWS_SECRET}", _AWS),
    NamedKey("AWS secret of an answer", "secretaccesskey", rf"{_IS}{_AWS_SECRET}", _AWS),
    NamedKey("HTTP basic", "basic", rf"{_GAP}(?P<key>[A-Za-z0-9+/_-]{{8,}}+={{0,2}})", _RFC + "7617"),
    NamedKey("password of an address", "//", rf"{_USER}:{_PASSWORD}@", _RFC + "3986"),
    NamedKey("Sentry's address", "//", rf"(?P<key>{_H}{{32}})@", "docs.sentry.io/concepts/key-terms/dsn-explainer"),
)  # fmt: skip
