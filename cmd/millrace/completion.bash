# bash completion for millrace. Load it with:  source <(millrace generate completion bash)
_millrace() {
    local line=${COMP_LINE:0:COMP_POINT} words cur
    # COMP_WORDS is split at = and : too; millrace wants words as the shell passes them.
    read -ra words <<<"$line"
    if [[ $line == *[[:space:]] ]]; then words+=(""); fi
    cur=${words[${#words[@]} - 1]}
    local IFS=$'\n'
    local candidates=($("${words[0]}" __complete "${words[@]:1}" 2>/dev/null))
    if [[ ${candidates[0]} == :files ]]; then
        compopt -o default
        COMPREPLY=()
        return
    fi
    # What bash replaces is the part after the last = or :.
    local prefix="" last=${COMP_WORDS[COMP_CWORD]}
    if [[ $cur == *[=:]* && $COMP_WORDBREAKS == *[=:]* ]]; then
        if [[ $last == [=:] ]]; then last=""; fi
        prefix=${cur%"$last"}
    fi
    COMPREPLY=()
    local c
    for c in "${candidates[@]}"; do COMPREPLY+=("${c#"$prefix"}"); done
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace; fi
}
complete -F _millrace millrace
