"""What age and step size do to losses: how the runs of study/grid.py are judged. Written before the first of them.

    end     mean pass rate of the last quarter of a run's evaluations
    fall    study/rule.py's, on the validation curve; or the run diverged. A result of its own: how many seeds of n
    spread  standard deviation of the ends between seeds, pooled over those cells of one learning rate and one number of
            steps in which no seed falls; never over learning rates

Two cells of one learning rate are compared by their ends, over the seeds that do not fall: difference of the means with
a 90 % interval as in study/rule.py, margin 0.02; and by their falls: Fisher's exact test, one-sided, 5 %.

    how far     a loss "holds to k" at a learning rate: the largest k such that up to it no age loses more than 0.02 of
                the end at k = 0 (by the whole interval) and no age has falls in a quarter of its seeds or more
    Fig. 4b     "k = 4 and k = 8 do equally well": CISPO, each learning rate, ends the same
    Fig. 5a     at k = 8, each learning rate: CISPO's end above DAPO's, GSPO's above DAPO's; with falls beside it. With
                160 steps speed and ceiling are one; the ceilings (400 steps, A of Eq. 1) are compared the same way
    Sec. 3.2    at k = 8: prompt average above sample and token average; normalisations the same; filter and
                No-Positive-Resampling lift the end. Verdicts by study/rule.py's `verdict`
    A.17        CISPO is the more robust to its hyperparameter than DAPO. Range: largest minus smallest mean end over
                three values of the clip, which span a factor of two for each loss; ends of all seeds, falls included.
                DAPO's range minus CISPO's, 90 % by 10,000 resamplings of seeds: agrees above 0, disagrees below 0
    Fig. 20     GSPO with half-widths 3e-3 and 5e-3 ends above GSPO with 3e-4 and 4e-4
    Fig. 4a     virtual device-hours to half of the gain (rule.py's E), PipelineRL-k against PPO-off-policy-k, for each
                k and each model of costs: more efficient in device-hours; and the idle shares
    FP32        bf16 bodies with and without the FP32 head, k = 0 and k = 8: ends the same

Does something announce a fall? Each signal is one number for 8 steps: smallest effective sample size, largest rho,
largest gradient norm over its median in steps 9 to 24. An alarm is the first 8 steps from step 9 on in which it crosses
a threshold. A hit is an alarm in or before the 8 steps in which the fall's peak lies; a false alarm is any alarm in a
run without a fall. The threshold is the one with the largest hit rate minus false-alarm rate on seeds 0 to 3; hits and
false alarms are counted on seeds 4 to 7, over the cells of the grid, for all losses together. A signal announces falls
if there it hits 80 % or more with 10 % false alarms or fewer. Beside it stands what the cell alone says: an alarm in
every run of the cells in which half or more of the seeds 0 to 3 fall.

Nothing of this says anything about GSPO's length-normalised ratio on long answers: those of `tiny` have 2 to 8 tokens.

Test: pytest tests/test_study_runs.py
"""

MARGIN = 0.02
FALLING = 0.25  # share of a cell's seeds from which on a loss does not hold there
HITS, FALSE_ALARMS = 0.8, 0.1  # at least, at most, of a signal that announces falls
CHOSEN_ON, KEPT_ASIDE = range(4), range(4, 8)  # seeds
