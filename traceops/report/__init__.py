"""What an analysis found, as data: the types of report.json, written and read back by them.

`model` has the whole, `rows` what there is of each rank, step and collective, `tables` what lies behind the figures.
"""
