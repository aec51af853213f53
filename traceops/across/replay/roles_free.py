"""What the communication of each kind of parallelism costs a step."""

from __future__ import annotations

import numpy as np

from traceops.across.replay.graph import StepGraph
from traceops.across.replay.simulate import Scenario, simulate
from traceops.across.replay.what_if import Prediction
from traceops.across.roles import Roles
from traceops.core.words import ROLES, Role


def role_change(role: Role) -> str:
    """The name of the change that takes a role's transfers away."""
    return f"{ROLES[role]} communication free"


def predict_roles(graph: StepGraph, roles: Roles) -> list[Prediction]:
    """The steps without the transfers of each role; nothing where there is one only: communication as a whole."""
    if not roles.several:
        return []
    of_node = np.array([roles.of_collective[number] for number in graph.kind])
    return [
        Prediction(
            role_change(role),
            (),
            simulate(graph, Scenario(transfer=np.where(of_node == role, 0, graph.transfer))).step_ns(),
        )
        for role in roles.known
        if (of_node == role).any()
    ]
