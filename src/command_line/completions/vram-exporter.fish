# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_vram_exporter_global_optspecs
    string join \n web.listen-address= web.systemd-socket= web.health-address= web.config-file= web.telemetry-path= web.disable-exporter-metrics= web.openmetrics-created= web.allowed-hosts= web.max-requests= web.max-connections= web.read-timeout= web.write-timeout= web.idle-timeout= metrics.include= metrics.exclude= nvml.library= nvml.call-timeout= nvml.release-duration= path.procfs= path.passwd= memory.rate= memory.idle-rate= memory.peak-window= memory.stale-after= memory.probes= process.interval= process.linger= process.series-limit= process.series= process.command-line= telemetry.interval= telemetry.slow-interval= telemetry.energy= telemetry.fan-speed= telemetry.performance-state= telemetry.workload-energy= telemetry.nvlink-errors-by-link= profiling.enabled= profiling.interval= kubernetes.node-name= kubernetes.api-server= kubernetes.token-file= kubernetes.ca-file= kubernetes.pod-labels= kubernetes.pod-resources= kubernetes.pod-resources-interval= kubernetes.timeout= slurm.allocations= dcgm.listen-address= dcgm.names= dcgm.collectors-file= dcgm.virtual-gpus= allocator.socket= allocator.sites= allocator.socket-mode= allocator.socket-group= recorder.max-memory-mib= recorder.path= recorder.max-files= recorder.max-disk-mib= recorder.log-ended-processes= recorder.reports-path= recorder.reports-max-mib= recorder.report-linger= otlp.endpoint= otlp.interval= otlp.timeout= otlp.compression= otlp.headers-file= otlp.ca-file= otlp.names= log.level= log.format= config.file= once check-config print-config demo= V/version h/help
end

function __fish_vram_exporter_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_vram_exporter_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_vram_exporter_using_subcommand
    set -l cmd (__fish_vram_exporter_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l web.listen-address -d 'Address to listen on: ":9836" (all interfaces, IPv6 and IPv4), "localhost:9836" (127.0.0.1), "[::1]:9836", or a socket file, "unix:/run/vram-exporter.sock"' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l web.systemd-socket -d 'Use the sockets that the service manager passes (socket activation) instead of web.listen-address' -r -f -a "true\t''
false\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l web.health-address -d 'Additional address for /healthz and /readyz only, without TLS and passwords: for probes that have no client certificate' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l web.config-file -l web.config.file -d 'A web-config file: TLS, client certificates, passwords, headers and a rate limit (docs/web-config.md)' -r -F
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l web.telemetry-path -d 'Path of the metrics; none of the exporter\'s other paths' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l web.disable-exporter-metrics -d 'Leave out the metrics about the exporter\'s own work: process_*, its faults, sampling loops, stuck threads and scrapes' -r -f -a "true\t''
false\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l web.openmetrics-created -d 'Send the creation times of counters to scrapers that ask for OpenMetrics: one more sample, with the suffix _created, for each counter and histogram whose start is known' -r -f -a "true\t''
false\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l web.allowed-hosts -d 'Names and addresses, without ports, under which clients may address the exporter, such as "gpu1.example.com" or "10.0.0.7"; requests with another Host get 421' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l web.max-requests -d 'Maximum number of requests answered at the same time, on all addresses together, as far as 32 MiB suffice for the bodies of their responses; further requests get 503' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l web.max-connections -d 'Maximum number of open connections, on web.listen-address and dcgm.listen-address together' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l web.read-timeout -d 'Maximum time for a client to send a request, from connecting or from the request\'s first byte' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l web.write-timeout -d 'Maximum time to send a response, until the client has received all of it' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l web.idle-timeout -d 'Maximum time that a connection may be idle between two requests' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l metrics.include -d 'Serve only the families with these names, and no others (docs/configuration.md#choosing-families)' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l metrics.exclude -d 'Leave out the families with these names, written as in metrics.include' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l nvml.library -d 'The driver\'s library, libnvidia-ml.so.1' -r -F
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l nvml.call-timeout -d 'A driver call that takes longer marks its GPU as stalled' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l nvml.release-duration -d 'How long the driver stays closed after SIGUSR1, so that it can be replaced' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l path.procfs -d 'Where procfs is mounted' -r -f -a "(__fish_complete_directories)"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l path.passwd -d 'A passwd file to read user names from' -r -F
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l memory.rate -d 'Samples of GPU memory per second' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l memory.idle-rate -d 'Samples per second while no process uses any GPU; at most memory.rate' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l memory.peak-window -d 'Length of the sliding window of the window peaks' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l memory.stale-after -d 'A GPU without a good sample for this long loses its memory values' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l memory.probes -d 'Watch the calls with which programs ask the driver for memory (docs/probes.md)' -r -f -a "none\t''
refusals\t''
all\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l process.interval -d 'Longest time between two readings of the processes; a change in memory use triggers a reading at once' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l process.linger -d 'How long the peaks of an ended process stay after its last peak window' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l process.series-limit -d 'Maximum number of processes shown per GPU; those with the most memory come first' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l process.series -d 'Show individual processes' -r -f -a "true\t''
false\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l process.command-line -d 'Show the command line of each process' -r -f -a "true\t''
false\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l telemetry.interval -d 'Interval for cheap readings such as temperature, power and clocks' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l telemetry.slow-interval -d 'Interval for readings that are expensive or rarely change (BAR1, PCIe replays, limited clocks, energy, fans, limits of power and temperature, retired pages, spare rows, highest PCIe link, NVLinks, fabric); at least telemetry.interval' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l telemetry.energy -d 'Read the driver\'s own energy counter too (gpu_driver_energy_joules_total)' -r -f -a "true\t''
false\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l telemetry.fan-speed -d 'Read the intended speed of the fans of GPUs that have fans, with the slow readings' -r -f -a "true\t''
false\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l telemetry.performance-state -d 'Read the performance state (P0 to P15) with the cheap readings' -r -f -a "true\t''
false\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l telemetry.workload-energy -d 'Apportion the energy of each GPU to the workloads by SM time (docs/README.md#questions), an estimate' -r -f -a "true\t''
false\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l telemetry.nvlink-errors-by-link -d 'Read the errors of each NVLink too, with the slow readings: up to four calls for each link, 134 ms for the 18 links of an H200' -r -f -a "true\t''
false\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l profiling.enabled -d 'Read the profiling counters (GPM) of GPUs that have them: Hopper and later' -r -f -a "true\t''
false\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l profiling.interval -d 'Interval between two samples of the profiling counters' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l kubernetes.node-name -d 'This node\'s name in the cluster, as in spec.nodeName of its pods' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l kubernetes.api-server -d 'The API server to query for the names of pods: "in-cluster" (the service account of the exporter\'s pod) or a URL such as "https://10.0.0.1:6443"' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l kubernetes.token-file -d 'A bearer token for the API server, read again when it changes' -r -F
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l kubernetes.ca-file -d 'The certificates to trust for the API server, in PEM' -r -F
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l kubernetes.pod-labels -d 'Labels of pods to show in gpu_pod_labels_info, by their keys, such as "team,example.com/queue": at most 10' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l kubernetes.pod-resources -d 'The kubelet\'s socket that reports which GPU is assigned to which container, usually /var/lib/kubelet/pod-resources/kubelet.sock' -r -F
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l kubernetes.pod-resources-interval -d 'Time between two requests to the kubelet' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l kubernetes.timeout -d 'Maximum time for the kubelet or the API server to answer' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l slurm.allocations -d 'The folder in which Slurm\'s prolog and epilog keep which GPU is allocated to which job (docs/deploy/slurm.md), usually /run/vram-exporter-slurm' -r -f -a "(__fish_complete_directories)"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l dcgm.listen-address -d 'Additional address that serves /metrics with the families of dcgm-exporter, such as ":9400" (docs/from-dcgm.md), with the same web.config-file and limits as web.listen-address' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l dcgm.names -d 'Names and units of families, and names of labels' -r -f -a "exporter-4.8\t''
exporter-4.9\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l dcgm.collectors-file -d 'A CSV file of dcgm-exporter that lists the fields to serve, with their types and help texts' -r -F
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l dcgm.virtual-gpus -d 'Serve one series for each container that shares a GPU (time-slicing, MPS), like KUBERNETES_VIRTUAL_GPUS of dcgm-exporter' -r -f -a "true\t''
false\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l allocator.socket -d 'A Unix socket on which processes report statistics of their memory allocators (docs/allocators.md)' -r -F
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l allocator.sites -d 'Show what a process reports about its memory by role (weights, gradients, activations) and by call site' -r -f -a "true\t''
false\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l allocator.socket-mode -d 'Permissions of allocator.socket' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l allocator.socket-group -d 'Group of allocator.socket, as a name or a number; for use with a mode such as 0660' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l recorder.max-memory-mib -d 'Memory for the recent past (two hours, or as much as fits) and for the incidents, in MiB' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l recorder.path -d 'An existing folder for the incidents, so that they survive a restart' -r -f -a "(__fish_complete_directories)"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l recorder.max-files -d 'Maximum number of incidents in recorder.path' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l recorder.max-disk-mib -d 'Maximum size of all incidents in recorder.path in MiB' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l recorder.log-ended-processes -d 'Log one line for each process that leaves the GPUs, with its owner, its highest memory and how long it lived; at most 20 lines in 10 seconds' -r -f -a "true\t''
false\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l recorder.reports-path -d 'An existing folder for the reports about jobs and other workloads: reports.jsonl, one JSON object on each line, and reports.1.jsonl, the file before it' -r -f -a "(__fish_complete_directories)"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l recorder.reports-max-mib -d 'Maximum size of both files in recorder.reports-path together, in MiB' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l recorder.report-linger -d 'How long after its last process a workload is expected to return to the GPUs, and its report is not final' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l otlp.endpoint -d 'URL of an OTLP/HTTP receiver to which the metrics are pushed (docs/collectors.md), such as "http://localhost:4318" or "https://prometheus:9090/api/v1/otlp"' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l otlp.interval -d 'Time between two pushes; at most memory.peak-window' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l otlp.timeout -d 'Maximum time for one attempt, from connecting to the end of the response' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l otlp.compression -d 'Compression of the requests' -r -f -a "gzip\t''
none\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l otlp.headers-file -d 'A file with headers for every request, one "Name: value" per line, for example with a token' -r -F
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l otlp.ca-file -d 'The certificates to trust for the receiver, in PEM, read again for every push' -r -F
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l otlp.names -d 'Names of the metrics' -r -f -a "scrape\t''
semantic-conventions\t''
both\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l log.level -d 'Level of the log on standard error: error, warn, info, debug, trace or off, or levels by target such as "info,vram_exporter=debug"' -r -f
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l log.format -d 'Format of a log line: key=value pairs, or one JSON object per line' -r -f -a "logfmt\t''
json\t''"
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l config.file -d 'Configuration file, .toml, .yaml or .yml' -r -F
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l demo -d 'Run on simulated GPUs' -r -f -a "demo\t''
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
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l once -d 'Print one scrape and exit'
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l check-config -d 'Check the configuration, print what is wrong, and exit'
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -l print-config -d 'Print the effective configuration with comments, and exit'
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -s V -l version -d 'Print the version and exit'
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -s h -l help -d 'Print this help and exit'
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -f -a "scenarios" -d 'Lists the simulated machines of --demo, with a sentence about each.'
complete -c vram-exporter -n "__fish_vram_exporter_needs_command" -f -a "completions" -d 'Prints the completion script for a shell.'
complete -c vram-exporter -n "__fish_vram_exporter_using_subcommand scenarios" -s h -l help -d 'Print this help and exit'
complete -c vram-exporter -n "__fish_vram_exporter_using_subcommand completions" -s h -l help -d 'Print this help and exit'

function __fish_vram_exporter_needs_command
    # A subcommand is always the first argument.
    set -l words (commandline -opc)
    if contains -- $words[2] scenarios completions
        echo $words[2]
        return 1
    end
    return 0
end
