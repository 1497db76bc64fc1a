#!/bin/bash
#SBATCH --job-name=@name
#SBATCH --nodes=@nodes
#SBATCH --ntasks=@nodes
#SBATCH --cpus-per-task=@cpus
#SBATCH --mem=@{memory_mib}M
#SBATCH --time=@minutes
@options
# Whether it runs again is the dispatcher's decision, which sees the exit code.
#SBATCH --no-requeue
# A warning in time for a checkpoint, before the time limit and at a preemption; only B: reaches the command itself.
#SBATCH --signal=B:USR1@@60
# The log's name would be read for patterns: it is opened below.
#SBATCH --output=/dev/null
exec </dev/null >>@log 2>&1
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-}
@environment
cd -- @folder || exit
# A command that heeds no warning is not killed by it: SLURM ends it, and says for what.
trap '' USR1
# The command on the nodes but this one, of a job that has several.
@others
# exec, or signals would end the shell and not reach the command.
exec -- @command
