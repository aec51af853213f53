"""What to do where no process of a command was seen to end a step."""

from __future__ import annotations

UNSEEN_STEPS_ADVICE = (
    "mark the steps in the script with traceops.capture and profile.step(), or count the model's calls with "
    "--step-on forward; parameters that are updated by hand, and optimizers that are not torch's (Keras's, JAX's), "
    "end no step that is seen"
)
