"""Rollouts: engines (token ids in and out), policies (messages in, a message out), agent loops and
episodes.

An episode of online training, from the loop down to a token; an evaluation begins at
`EpisodeSampler`:

    RolloutCollector        tasks of a step, and what is replayed  train/online/collect.py
    RolloutSchedule.take    a step's episodes, now or one ahead    rollout/generator.py
    EpisodeSource.run       rewards by rules and by reward model   train/online/learning.py
    EpisodeSampler.sample   by the weights of the last refresh     rollout/episode_sampler.py
    run_episodes            all at once, aborted ones once more    rollout/episodes.py
    loop(episode, policy)   turn by turn, until a stop reason      rollout/agent_loops.py, agents/
    Policy.reply            the next message of one episode        rollout/policy.py, prefix.py
    Engine.generate         tokens behind a context                rollout/engines/
"""
