"""traceops in the trainers and trackers that people have: one module each, which alone imports that package.

huggingface, lightning: callbacks. accelerate: a tracker. torchtitan: a profiler for its config. mlflow, wandb: log a
report to the active run. notebook: ``%load_ext traceops``.
"""
