# fish completion for millrace. Load it with:  millrace generate completion fish | source
function __millrace_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l candidates ($words[1] __complete $words[2..-1] 2>/dev/null)
    if test "$candidates[1]" = :files
        __fish_complete_path (commandline -ct)
        return
    end
    for candidate in $candidates
        echo $candidate
    end
end
complete -c millrace -f -a '(__millrace_complete)'
