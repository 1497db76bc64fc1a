"""Token rows of recorded episodes, for trainers that learn from them."""

from collections.abc import Sequence

from posttrain.data.schemas import TrajectoryRow
from posttrain.models.codec import ChatCodec, TokenRow


def token_rows(rows: Sequence[TrajectoryRow], codec: ChatCodec) -> list[TokenRow]:
    """Tokens of each episode as an engine saw them, else the conversation rendered (imported
    ones)."""
    unseen = [row for row in rows if not row.trajectory.token_ids]
    rendered = iter(codec.encode_rows((row.trajectory.messages, row.tools) for row in unseen))
    seen = (row.trajectory for row in rows)
    return [
        TokenRow(list(played.token_ids), list(played.mask), list(played.mask)) if played.token_ids else next(rendered)
        for played in seen
    ]
