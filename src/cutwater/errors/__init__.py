"""Every error Cutwater raises, in one tree, each with a stable code and a next step.

    CutwaterError
    ├── UserError              something the user wrote or asked for
    │   ├── ConfigError        CW-101  an option has a value that cannot work
    │   ├── DeclarationError   CW-102  a pipeline or one of its nodes is declared wrongly
    │   └── PlanError          CW-103  the nodes of a pipeline do not fit together
    │       └── AdoptionRefused  CW-104  plain queries do not fit the pipeline's steps
    ├── ProtocolViolation      CW-201  an event that the protocol forbids in this state
    │   └── InvariantBroken    CW-202  a promise of PROTOCOL.md does not hold
    ├── StoreError             CW-300  the store did not do what was asked of it
    │   ├── NotFound           CW-301  there is no object of that name
    │   ├── Conflict           CW-302  something else has that name already
    │   ├── Corrupt            CW-303  an object is not what was written
    │   ├── Unavailable        CW-304  the store cannot be read or written now; nothing changed
    │   ├── OutcomeUnknown     CW-305  nobody can say whether a write has happened
    │   ├── NewerFormat        CW-306  an object was written by a newer Cutwater
    │   └── InvalidPath        CW-307  a name that no object can have
    ├── Fenced                 CW-401  a newer generation has claimed the pipeline
    ├── Superseded             CW-402  a sink has acted on a later decision than this one
    ├── SinkError              CW-501  a sink could not do what was asked of it
    │   └── TargetBehind       CW-502  a target lacks a commit that the store has recorded
    ├── NotReadable            CW-510  a sink cannot be read as it was at a checkpoint
    ├── RunError               CW-600  a pipeline could not be run
    │   ├── SessionError       CW-601  this Spark session or Java cannot run a pipeline
    │   ├── StepError          CW-602  a step failed, with the user's function and line
    │   ├── RecoveryError      CW-603  the pipeline cannot go on from its last checkpoint
    │   │   └── CodeChanged    CW-608  its code has changed in a way that needs a decision
    │   ├── PipelineHeld       CW-604  another process runs the pipeline
    │   ├── HolderUnknown      CW-613  nobody can tell whether one does
    │   ├── NotRunning         CW-611  nobody runs the pipeline that was asked for something
    │   └── RequestFailed      CW-612  a running pipeline did not do what it was asked for
    └── MoveRefused            CW-701  a rewind or fork that cannot be done

Expected outcomes (a duplicate acknowledgement, a lost race, nothing to recover) are enums, not
errors. All classes survive pickling, since they cross process boundaries on Spark.
"""

from cutwater.errors.base import (
    CutwaterError,
)
from cutwater.errors.protocol import (
    Fenced,
    InvariantBroken,
    ProtocolViolation,
    Superseded,
)
from cutwater.errors.running import (
    CodeChanged,
    HolderUnknown,
    MoveRefused,
    NotReadable,
    NotRunning,
    PipelineHeld,
    RecoveryError,
    RequestFailed,
    RunError,
    SessionError,
    SinkError,
    StepError,
    TargetBehind,
)
from cutwater.errors.store import (
    Conflict,
    Corrupt,
    InvalidPath,
    NewerFormat,
    NotFound,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from cutwater.errors.user import (
    AdoptionRefused,
    ConfigError,
    DeclarationError,
    PlanError,
    UserError,
)

__all__ = [
    "AdoptionRefused",
    "CodeChanged",
    "ConfigError",
    "Conflict",
    "Corrupt",
    "CutwaterError",
    "DeclarationError",
    "Fenced",
    "HolderUnknown",
    "InvalidPath",
    "InvariantBroken",
    "MoveRefused",
    "NewerFormat",
    "NotFound",
    "NotReadable",
    "NotRunning",
    "OutcomeUnknown",
    "PipelineHeld",
    "PlanError",
    "ProtocolViolation",
    "RecoveryError",
    "RequestFailed",
    "RunError",
    "SessionError",
    "SinkError",
    "StepError",
    "StoreError",
    "Superseded",
    "TargetBehind",
    "Unavailable",
    "UserError",
]
