#!/usr/bin/env bash
# Start two machines on AWS for docs/two-machines.md, and remove them again. They cost money until they are removed.
#
#   KEY=my-key ADDRESS=203.0.113.7/32 deploy/aws_two_machines.sh up
#   deploy/aws_two_machines.sh down
#
# up --dry-run and down --dry-run print the commands and run none. Needs aws (AWS CLI 2) with a region and credentials.
#
# KEY: your EC2 key pair. ADDRESS: the addresses from which you log in. Optional: TYPE, the type of the machines;
# DISK_GB; IMAGE, an image of Ubuntu; NAME, by which `down` finds what `up` made.
set -euo pipefail

TYPE=${TYPE:-g6.2xlarge} DISK_GB=${DISK_GB:-150} NAME=${NAME:-imagenet-ddp}
PARAMETER=/aws/service/deeplearning/ami/x86_64/base-with-single-cuda-ubuntu-24.04/latest/ami-id
STATES=pending,running,stopping,stopped
dry_run=
ids= # of the machines

refuse() {
  echo "$1" >&2
  exit 2
}

# ec2 PLACEHOLDER COMMAND...: run the command, or with --dry-run show it, with the placeholder as what it returns.
ec2() {
  local placeholder=$1
  shift
  if [[ $dry_run ]]; then
    printf '%q ' aws --output text "$@" >&2
    echo >&2
    echo "$placeholder"
  else
    aws --output text "$@"
  fi
}

machines() {
  ec2 "$1" ec2 describe-instances --filters "Name=tag:Name,Values=$NAME" "Name=instance-state-name,Values=$STATES" \
    --query "Reservations[].Instances[].$2"
}

groups() {
  ec2 "$1" ec2 describe-security-groups --filters "Name=group-name,Values=$NAME" --query 'SecurityGroups[].GroupId'
}

placement_groups() {
  ec2 "$1" ec2 describe-placement-groups --filters "Name=group-name,Values=$NAME" "Name=state,Values=available" \
    --query 'PlacementGroups[].GroupName'
}

# Remove everything of this name, also where a part cannot be removed; then name what is left, and return 1.
down() {
  local group place failed=
  [[ $ids ]] || ids=$(machines "INSTANCE_0 INSTANCE_1" InstanceId) || failed=1
  if [[ $ids ]]; then
    # shellcheck disable=SC2086 # one word per machine
    { ec2 "" ec2 terminate-instances --instance-ids $ids >/dev/null &&
      ec2 "" ec2 wait instance-terminated --instance-ids $ids >/dev/null; } || failed=1
  fi
  group=$(groups SECURITY_GROUP) || failed=1
  [[ ! ${group:-} ]] || ec2 "" ec2 delete-security-group --group-id "$group" >/dev/null || failed=1
  place=$(placement_groups "$NAME") || failed=1
  [[ ! ${place:-} ]] || ec2 "" ec2 delete-placement-group --group-name "$place" >/dev/null || failed=1
  if [[ $failed ]]; then
    echo "Not all was removed. These may be left, and machines cost money:" >&2
    printf '  %s\n' "machines: ${ids:-see the console}" "security group: ${group:-see the console}" \
      "placement group: ${place:-see the console}" "Try again: NAME=$NAME $0 down" >&2
    return 1
  fi
  [[ $dry_run ]] || echo "Nothing named $NAME is left." >&2
}

undo() {
  local code=$?
  trap - EXIT
  trap '' HUP INT TERM # which would leave machines running
  echo "up has failed (exit code $code), and removes what it has made." >&2
  down || true
  exit "$code"
}

up() {
  [[ ${KEY:-} ]] || refuse "KEY must be the name of your EC2 key pair, but is not set. Hint: aws ec2 describe-key-pairs"
  [[ ${ADDRESS:-} == */* ]] ||
    refuse "ADDRESS must be like 203.0.113.7/32, got '${ADDRESS:-}'. Hint: your own public address."
  if [[ ! $dry_run ]]; then
    local old_machines old_groups old_places old
    old_machines=$(machines "" InstanceId)
    old_groups=$(groups "")
    old_places=$(placement_groups "")
    old=$(echo "$old_machines" "$old_groups" "$old_places" | xargs)
    [[ ! $old ]] || refuse "NAME must be unused, but of $NAME there are: $old.
Hint: set another NAME, or remove them: NAME=$NAME $0 down"
    trap undo EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
  fi
  local group tags="Tags=[{Key=Name,Value=$NAME}]" image=${IMAGE:-}
  [[ $image ]] || image=$(ec2 IMAGE ssm get-parameter --name "$PARAMETER" --query Parameter.Value)
  ec2 "" ec2 create-placement-group --group-name "$NAME" --strategy cluster >/dev/null
  group=$(ec2 SECURITY_GROUP ec2 create-security-group --group-name "$NAME" --description "$NAME: two machines" \
    --tag-specifications "ResourceType=security-group,$tags" --query GroupId)
  ec2 "" ec2 authorize-security-group-ingress --group-id "$group" --protocol tcp --port 0-65535 \
    --source-group "$group" >/dev/null
  ec2 "" ec2 authorize-security-group-ingress --group-id "$group" --protocol tcp --port 22 --cidr "$ADDRESS" >/dev/null
  # shutdown on a machine removes it, with its disk
  ids=$(ec2 "INSTANCE_0 INSTANCE_1" ec2 run-instances --count 2 --image-id "$image" --instance-type "$TYPE" \
    --key-name "$KEY" --security-group-ids "$group" --placement "GroupName=$NAME" \
    --block-device-mappings "DeviceName=/dev/sda1,Ebs={VolumeSize=$DISK_GB,VolumeType=gp3,DeleteOnTermination=true}" \
    --instance-initiated-shutdown-behavior terminate --tag-specifications "ResourceType=instance,$tags" \
    --query 'Instances[].InstanceId')
  local addresses
  # shellcheck disable=SC2086 # one word per machine
  ec2 "" ec2 wait instance-status-ok --instance-ids $ids >/dev/null
  addresses=$(machines $'PUBLIC_0 PRIVATE_0\nPUBLIC_1 PRIVATE_1' "[PublicIpAddress,PrivateIpAddress]")
  trap - EXIT HUP INT TERM
  local number=0 public private
  while read -r public private; do
    echo "node $number: ssh -A ubuntu@$public   # private address: $private"
    number=$((number + 1))
  done <<<"$addresses"
  echo "Go on with section 3 of docs/two-machines.md. To stop paying: NAME=$NAME $0 down"
}

command=${1:-} option=${2:-}
if [[ ! $command =~ ^(up|down)$ || ! $option =~ ^(--dry-run)?$ || $# -gt 2 ]]; then
  refuse "The command must be $0 up|down [--dry-run], got '$*'. Hint: the first lines of the script tell the settings."
fi
dry_run=$option
# AWS reads * ? and , in a name as a pattern: `down` would find other machines.
[[ $NAME =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] ||
  refuse "NAME must have only letters, digits, '.', '_' and '-', got '$NAME'. Hint: set NAME=imagenet-ddp."
[[ $DISK_GB =~ ^[0-9]+$ ]] || refuse "DISK_GB must be a whole number, got '$DISK_GB'. Hint: set DISK_GB=150."
[[ $dry_run ]] || command -v aws >/dev/null ||
  refuse "aws (AWS CLI 2) must be on PATH, but is not. Hint: add --dry-run to see its commands."
"$command"
