# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_vram_global_optspecs
    string join \n format= demo= config.file= nvml.library= nvml.call-timeout= path.procfs= path.passwd= h/help V/version
end

function __fish_vram_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_vram_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_vram_using_subcommand
    set -l cmd (__fish_vram_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c vram -n "__fish_vram_needs_command" -l format -d 'A table for people, or JSON' -r -f -a "table\t''
json\t''"
complete -c vram -n "__fish_vram_needs_command" -l demo -d 'Use simulated GPUs: vram-exporter scenarios lists them' -r -f -a "demo\t''
idle-h200\t''
busy-h200\t''
eight-h200\t''
mig-a100\t''
mig-h100\t''
mixed\t''
old-driver\t''
unified-memory\t''
gb10\t''
throttled\t''
dra\t''
hostile-names\t''"
complete -c vram -n "__fish_vram_needs_command" -l config.file -d 'The configuration file of the exporter' -r
complete -c vram -n "__fish_vram_needs_command" -l nvml.library -d 'The NVML library to open' -r
complete -c vram -n "__fish_vram_needs_command" -l nvml.call-timeout -d 'How long to wait for a driver call that does not return' -r
complete -c vram -n "__fish_vram_needs_command" -l path.procfs -d 'The /proc in which processes are looked up' -r
complete -c vram -n "__fish_vram_needs_command" -l path.passwd -d 'A file like /etc/passwd that names the users of processes' -r
complete -c vram -n "__fish_vram_needs_command" -s h -l help -d 'Print help'
complete -c vram -n "__fish_vram_needs_command" -s V -l version -d 'Print version'
complete -c vram -n "__fish_vram_needs_command" -f -a "run" -d 'Runs a command and reports how much GPU memory its processes held: together, each, and on each GPU.'
complete -c vram -n "__fish_vram_needs_command" -f -a "report" -d 'Prints what an exporter reports about a job or another workload: its memory on each GPU, and advice.'
complete -c vram -n "__fish_vram_needs_command" -f -a "leaks" -d 'Asks a process which lines of its program hold more GPU memory at each of several looks.'
complete -c vram -n "__fish_vram_needs_command" -f -a "advise" -d 'Advises how much GPU memory each workload should request, judging by the history in a Prometheus server.'
complete -c vram -n "__fish_vram_needs_command" -f -a "completions" -d 'Prints the completion script for a shell.'
complete -c vram -n "__fish_vram_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c vram -n "__fish_vram_using_subcommand run" -l rate -d 'Memory samples per second, 1 to 1000' -r
complete -c vram -n "__fish_vram_using_subcommand run" -l format -d 'The format of the report' -r -f -a "text\t''
json\t''"
complete -c vram -n "__fish_vram_using_subcommand run" -l output -d 'Write the report to this file instead of standard error' -r -F
complete -c vram -n "__fish_vram_using_subcommand run" -l memory.probes -d 'all: watch the driver\'s memory calls, for peaks that no reading shows' -r
complete -c vram -n "__fish_vram_using_subcommand run" -l demo -d 'Use simulated GPUs: vram-exporter scenarios lists them' -r -f -a "demo\t''
idle-h200\t''
busy-h200\t''
eight-h200\t''
mig-a100\t''
mig-h100\t''
mixed\t''
old-driver\t''
unified-memory\t''
gb10\t''
throttled\t''
dra\t''
hostile-names\t''"
complete -c vram -n "__fish_vram_using_subcommand run" -l config.file -d 'The configuration file of the exporter' -r
complete -c vram -n "__fish_vram_using_subcommand run" -l nvml.library -d 'The NVML library to open' -r
complete -c vram -n "__fish_vram_using_subcommand run" -l nvml.call-timeout -d 'How long to wait for a driver call that does not return' -r
complete -c vram -n "__fish_vram_using_subcommand run" -l path.procfs -d 'The /proc in which processes are looked up' -r
complete -c vram -n "__fish_vram_using_subcommand run" -l path.passwd -d 'A file like /etc/passwd that names the users of processes' -r
complete -c vram -n "__fish_vram_using_subcommand run" -s h -l help -d 'Print help'
complete -c vram -n "__fish_vram_using_subcommand report" -l job -d 'Print the reports about this job of Slurm or of another scheduler' -r
complete -c vram -n "__fish_vram_using_subcommand report" -l workload -d 'Print the reports about this workload, such as namespace/pod/container' -r
complete -c vram -n "__fish_vram_using_subcommand report" -l url -d 'The exporter' -r
complete -c vram -n "__fish_vram_using_subcommand report" -l format -d 'Print text, or one JSON object on each line' -r -f -a "text\t''
json\t''"
complete -c vram -n "__fish_vram_using_subcommand report" -l timeout -d 'How long the answer may take in all, 1 to 600' -r
complete -c vram -n "__fish_vram_using_subcommand report" -l price-per-kwh -d 'Print what the energy costs, if the exporter apportions it (telemetry.workload-energy)' -r
complete -c vram -n "__fish_vram_using_subcommand report" -l http-config -d 'Password, token, certificates and headers, in the format of promtool\'s HTTP config' -r -F
complete -c vram -n "__fish_vram_using_subcommand report" -s h -l help -d 'Print help'
complete -c vram -n "__fish_vram_using_subcommand leaks" -l socket -d 'The exporter\'s allocator.socket' -r -F
complete -c vram -n "__fish_vram_using_subcommand leaks" -l seconds -d 'The time from the first look to the last one, 1 to 600' -r
complete -c vram -n "__fish_vram_using_subcommand leaks" -l looks -d 'The number of looks, 3 to 20' -r
complete -c vram -n "__fish_vram_using_subcommand leaks" -l format -d 'Print text or JSON' -r -f -a "text\t''
json\t''"
complete -c vram -n "__fish_vram_using_subcommand leaks" -s h -l help -d 'Print help'
complete -c vram -n "__fish_vram_using_subcommand advise" -l prometheus.url -d 'The Prometheus server, or another one with its API' -r
complete -c vram -n "__fish_vram_using_subcommand advise" -l range -d 'How far back the history is read' -r
complete -c vram -n "__fish_vram_using_subcommand advise" -l time -d 'The end of the range, in seconds since 1970 or like 2026-01-31T12:00:00Z' -r
complete -c vram -n "__fish_vram_using_subcommand advise" -l by -d 'Advise for each workload, each container of a pod, each batch job, or each user' -r -f -a "workload\t''
pod\t''
job\t''
user\t''"
complete -c vram -n "__fish_vram_using_subcommand advise" -l format -d 'How the advice is printed' -r -f -a "table\t''
json\t''
yaml\t''
csv\t''"
complete -c vram -n "__fish_vram_using_subcommand advise" -l min-samples -d 'With fewer samples there is no advice' -r
complete -c vram -n "__fish_vram_using_subcommand advise" -l min-span -d 'With a shorter history there is no advice' -r
complete -c vram -n "__fish_vram_using_subcommand advise" -l http-config -d 'Password, token, certificates and headers, in the format of promtool\'s HTTP config' -r -F
complete -c vram -n "__fish_vram_using_subcommand advise" -l timeout -d 'How long all requests may take together, 1s to 1h' -r
complete -c vram -n "__fish_vram_using_subcommand advise" -s h -l help -d 'Print help'
complete -c vram -n "__fish_vram_using_subcommand completions" -s h -l help -d 'Print help'
complete -c vram -n "__fish_vram_using_subcommand help; and not __fish_seen_subcommand_from run report leaks advise completions help" -f -a "run" -d 'Runs a command and reports how much GPU memory its processes held: together, each, and on each GPU.'
complete -c vram -n "__fish_vram_using_subcommand help; and not __fish_seen_subcommand_from run report leaks advise completions help" -f -a "report" -d 'Prints what an exporter reports about a job or another workload: its memory on each GPU, and advice.'
complete -c vram -n "__fish_vram_using_subcommand help; and not __fish_seen_subcommand_from run report leaks advise completions help" -f -a "leaks" -d 'Asks a process which lines of its program hold more GPU memory at each of several looks.'
complete -c vram -n "__fish_vram_using_subcommand help; and not __fish_seen_subcommand_from run report leaks advise completions help" -f -a "advise" -d 'Advises how much GPU memory each workload should request, judging by the history in a Prometheus server.'
complete -c vram -n "__fish_vram_using_subcommand help; and not __fish_seen_subcommand_from run report leaks advise completions help" -f -a "completions" -d 'Prints the completion script for a shell.'
complete -c vram -n "__fish_vram_using_subcommand help; and not __fish_seen_subcommand_from run report leaks advise completions help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'

function __fish_vram_needs_command
    # A subcommand is always the first argument.
    set -l words (commandline -opc)
    if contains -- $words[2] run report leaks advise completions
        echo $words[2]
        return 1
    end
    return 0
end
