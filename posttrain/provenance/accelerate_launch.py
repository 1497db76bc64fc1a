"""`accelerate launch`, without the log and the traceback that it leaves when a process ends: how it
ended, the process has written down.

Ends with 75 where the free port that it had picked was taken by then, with 1 for any other failure.
"""

import logging
import signal
import sys

from posttrain.runtime.exits import Interrupted
from posttrain.runtime.redaction import redact
from posttrain.runtime.worker import die_with_parent


def main() -> None:
    die_with_parent(signal.SIGKILL)
    logging.disable(logging.CRITICAL)  # of this process alone, the agent; the processes that train are other programs
    from accelerate.commands.launch import main as launch
    from torch.distributed import DistNetworkError
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        launch()
    except ChildFailedError:
        sys.exit(1)
    except DistNetworkError as error:
        print(redact(str(error)), file=sys.stderr)
        sys.exit(Interrupted.code if "EADDRINUSE" in str(error) else 1)


if __name__ == "__main__":
    main()
