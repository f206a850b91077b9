"""The report: figures and page, made from DataFrames alone."""
