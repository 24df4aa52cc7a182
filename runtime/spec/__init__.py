"""What a job is: `JobSpec`, the accelerator catalogue and the errors."""

from runtime.spec._problems import JobFileError, Problem
from runtime.spec.catalogue import Accelerator, Catalogue, load_catalogue
from runtime.spec.errors import (
    ArtifactError,
    AttestationError,
    CapacityError,
    CaptureError,
    CheckpointError,
    CompileError,
    CoordinationError,
    DataError,
    LoweringError,
    LumaError,
    RunError,
    ServeError,
    SpecError,
)
from runtime.spec.job import JobSpec
from runtime.spec.schema import job_schema
from runtime.spec.sections import (
    AdapterSection,
    CheckpointSection,
    CompileSection,
    DataSection,
    KmsSection,
    ModelSection,
    OptimizerSection,
    RecoverySection,
    ResourcesSection,
    ScheduleSection,
    ServiceSection,
    TrainSection,
)
from runtime.spec.template import commented_job_yaml
from runtime.spec.units import parse_accelerator

__all__ = [
    "Accelerator",
    "AdapterSection",
    "ArtifactError",
    "AttestationError",
    "CapacityError",
    "CaptureError",
    "Catalogue",
    "CheckpointError",
    "CheckpointSection",
    "CompileError",
    "CompileSection",
    "CoordinationError",
    "DataError",
    "DataSection",
    "JobFileError",
    "JobSpec",
    "KmsSection",
    "LoweringError",
    "LumaError",
    "ModelSection",
    "OptimizerSection",
    "Problem",
    "RecoverySection",
    "ResourcesSection",
    "RunError",
    "ScheduleSection",
    "ServeError",
    "ServiceSection",
    "SpecError",
    "TrainSection",
    "commented_job_yaml",
    "job_schema",
    "load_catalogue",
    "parse_accelerator",
]
