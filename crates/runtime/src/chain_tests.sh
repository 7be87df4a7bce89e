#!/bin/sh
# A plugin that notes how it was called, in the directory where it was found, and answers as
# the file NAME.ADD, NAME.DEL, ... beside it says: the answer to print if there is one, which
# is also what makes it fail.
cd "$CNI_PATH" || exit 2
self=$(basename "$0")
echo "$CNI_COMMAND $self" >>log
cat >"$self.stdin"
env | grep ^CNI_ | sort >"$self.environment"
if [ -e "$self.$CNI_COMMAND" ]; then
    cat "$self.$CNI_COMMAND"
    exit 1
fi
[ "$CNI_COMMAND" != ADD ] || cat "$self.result"
