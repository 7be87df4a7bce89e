#!/bin/sh
# A plugin for tests. It records its call in its own directory: the verb in the file log, standard
# input in NAME.stdin, the variables in NAME.environment. If the file NAME.VERB exists, such as
# NAME.DEL, the plugin prints that file and fails. Otherwise it succeeds, and ADD prints NAME.result.
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
