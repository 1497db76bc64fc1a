#!/bin/bash
#SBATCH --job-name=train-sft-0123456789-1
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=1536M
#SBATCH --time=4
#SBATCH --partition=spot
#SBATCH --gres=gpu:2
# Whether it runs again is the dispatcher's decision, which sees the exit code.
#SBATCH --no-requeue
# A warning in time for a checkpoint, before the time limit and at a preemption; only B: reaches the command itself.
#SBATCH --signal=B:USR1@60
# The log's name would be read for patterns: it is opened below.
#SBATCH --output=/dev/null
exec </dev/null >>'/shared/folder/it'"'"'s a log' 2>&1
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-}
export A=''
export B='2 $HOME'
cd -- /shared/folder || exit
# A command that heeds no warning is not killed by it: SLURM ends it, and says for what.
trap '' USR1
# The command on the nodes but this one, of a job that has several.
#
# exec, or signals would end the shell and not reach the command.
exec -- python -m 'a b' '$(touch pwned)'
