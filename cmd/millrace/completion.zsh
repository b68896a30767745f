#compdef millrace
# zsh completion for millrace. Load it with:  source <(millrace generate completion zsh)
# or put it into a file _millrace in a directory of $fpath.
_millrace() {
    local -a candidates plain pairs
    candidates=("${(@f)$(${words[1]} __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    candidates=("${(@)candidates:#}")
    if [[ ${candidates[1]} == :files ]]; then
        _files
        return
    fi
    pairs=("${(@M)candidates:#*=}")
    plain=("${(@)candidates:#*=}")
    (( ${#plain} )) && compadd -- "${plain[@]}"
    (( ${#pairs} )) && compadd -S '' -- "${pairs[@]}"
    return 0
}
if [[ ${funcstack[1]} == _millrace ]]; then _millrace "$@"; else compdef _millrace millrace; fi
