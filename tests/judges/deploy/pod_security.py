"""The "baseline" level of Kubernetes' Pod Security Standards, with the controls that their documentation lists."""

# The "baseline" level allows these capabilities to be added. We add none, but the level is checked as documented.
BASELINE_CAPABILITIES = set(
    "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE SETFCAP SETGID SETPCAP SETUID SYS_CHROOT".split()
)


def beyond_baseline(annotations, pod):
    """What Pod Security's "baseline" level would warn about."""
    found = {key for key in ("hostPID", "hostIPC", "hostNetwork") if pod.get(key)}
    if any("hostPath" in volume for volume in pod.get("volumes", [])):
        found.add("hostPath")
    contexts = [pod.get("securityContext", {})]
    for container in pod["containers"] + pod.get("initContainers", []):
        context = container.get("securityContext", {})
        contexts.append(context)
        if context.get("privileged"):
            found.add("privileged")
        if set(context.get("capabilities", {}).get("add", [])) - BASELINE_CAPABILITIES:
            found.add("capabilities")
        if context.get("procMount", "Default") != "Default":
            found.add("procMount")
        if any(port.get("hostPort") for port in container.get("ports", [])):
            found.add("hostPort")
    for context in contexts:
        if context.get("seccompProfile", {}).get("type") == "Unconfined":
            found.add("seccomp")
        if context.get("appArmorProfile", {}).get("type") == "Unconfined":
            found.add("appArmor")
        if "seLinuxOptions" in context:
            found.add("seLinux")
        if context.get("windowsOptions", {}).get("hostProcess"):
            found.add("hostProcess")
        if context.get("sysctls"):
            found.add("sysctls")
    if any(key.startswith("container.apparmor.security.beta.kubernetes.io/") for key in annotations):
        found.add("appArmor")
    return found
