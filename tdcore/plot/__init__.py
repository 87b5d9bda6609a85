"""Pictures of a run as matplotlib figures, for notebooks and scripts: `Trial.plot`. Needs the extra `plot`.

    run = create_trial("runs/demo")
    run.plot.layers("^gradient/")        # heat map of all layers by steps
    run.plot.loss().savefig("loss.png")

Each picture has one file. Figures are created without pyplot, so no state of pyplot changes, and no figure
stays in memory. Statistics and the reduction to pixel columns are those of tdcore.view.
"""

from tdcore.plot.plots import Plots

__all__ = ["Plots"]
