"""Token rows of recorded episodes, for trainers that learn from them."""

from collections.abc import Sequence

from posttrain.data.schemas import TrajectoryRow
from posttrain.models.codec import ChatCodec, TokenRow


def token_rows(rows: Sequence[TrajectoryRow], codec: ChatCodec) -> list[TokenRow]:
    """Tokens of each episode as an engine saw them, else the conversation rendered (imported
    ones). Those of its workers are left out."""
    unseen = [row for row in rows if not row.trajectory.num_own_tokens]
    rendered = iter(codec.encode_rows((row.trajectory.messages, row.tools) for row in unseen))
    found = []
    for played in (row.trajectory for row in rows):
        mask = list(played.mask[: played.num_own_tokens])
        found.append(TokenRow(list(played.token_ids[: len(mask)]), mask, list(mask)) if mask else next(rendered))
    return found
