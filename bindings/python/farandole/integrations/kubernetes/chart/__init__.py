"""Makes Helm charts from the generator: `farandole kubernetes chart`.

The generator runs once for each option that becomes a value, and once for each pair of them, with placeholders for
what users enter. `merge` finds for each field in which of these manifests it is, and writes one template of all: `if`
where options decide, `range` where lists are repeated. So a chart has the generator's documents, reasons and refusals.
"""
