"""Policies play tasks: engines (token ids in and out), policies (messages in, a message out),
agent loops and episodes.

One episode of a training online, from the loop down to a token; an evaluation begins at
`EpisodeSampler`:

    RolloutCollector.play      which tasks, and what joins them      train/online/collect.py
    RolloutSchedule.take       the episodes of a step, now or ahead  rollout/generator.py
    EpisodeSource.play         reward by rules and by reward model  train/online/policy_episodes.py
    EpisodeSampler.sample      by the weights of the last refresh    rollout/episode_sampler.py
    run_episodes              all at once, aborted ones again       rollout/episodes.py
    loop(episode, policy)      turn by turn, until a stop reason     rollout/loops.py, agents/
    Policy.reply               the next message of one episode       rollout/policy.py
    Engine.generate            tokens behind a context               rollout/engines/
"""
