"""From traces to a report: map, reduce, judge, assemble."""
