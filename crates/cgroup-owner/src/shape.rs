//! The shapes of a single name in a cgroup path.
//!
//! Invariant: an id is returned complete or not at all, and every returned string is ASCII.

/// Services of the machine whose cgroups can contain containers or jobs of other owners. This happens when a
/// runtime and the kubelet disagree over which of them creates cgroups. In any other unit a container belongs to that
/// unit.
const RUNTIMES: &str = "balena condor containerd cri-docker crio docker ecs garden k0scontroller k0sworker k3s-agent k3s \
    kubelet rke2-agent rke2-server snap.docker.dockerd snap.k8s.containerd snap.microk8s.daemon-containerd \
    snap.microk8s.daemon-kubelite";

/// The longest name that Linux allows.
const NAME_LENGTH: usize = 255;
/// The length of the ids used by docker, containerd's CRI, nerdctl, cri-o and podman.
const ID_LENGTH: usize = 64;
/// The length of the ids of an ECS task and of a static pod: an MD5 sum or a uid without hyphens.
const SHORT_LENGTH: usize = 32;

/// Copies a name that is known to be ASCII.
fn owned(name: &[u8]) -> String {
    name.iter().copied().map(char::from).collect()
}

fn is_hex(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_number(bytes: &[u8]) -> bool {
    (1..=10).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_digit)
}

/// A runtime's container: its 64 hexadecimal digits, alone or after `prefix-`, also as a scope: `docker-<id>.scope`,
/// `cri-containerd-<id>.scope`, `crio-<id>`, `libpod-payload-<id>`; or `slice:prefix:<id>`, which the kubelet
/// passes for the systemd driver, and which a runtime without systemd uses as a plain name.
///
/// Any prefix is accepted: a runtime puts its containers under any configured parent, and nothing else uses such names.
/// The exceptions are the monitors of podman and cri-o, which have the container's id in their name and are not in the
/// container.
pub(crate) fn container(name: &[u8]) -> Option<String> {
    let name = name.strip_suffix(b".scope").unwrap_or(name);
    let (prefix, id) = name.split_at(name.len().checked_sub(ID_LENGTH)?);
    let is_prefix = match prefix {
        [] => true,
        [_, .., b'-' | b':'] => !prefix.windows(6).any(|word| word == b"conmon"),
        _ => false,
    };
    (is_prefix && is_hex(id)).then(|| owned(id))
}

/// An AWS Fargate container, below `ecs`: the task's id, a hyphen and a number.
pub(crate) fn ecs_container(name: &[u8]) -> Option<String> {
    let (task, number) = name.split_at_checked(SHORT_LENGTH)?;
    (is_hex(task) && is_number(number.strip_prefix(b"-")?)).then(|| owned(name))
}

/// A container with a user-chosen name, by containerd's own naming rule. A name with a unit's suffix belongs to
/// systemd.
pub(crate) fn containerd_name(name: &[u8]) -> Option<String> {
    (is_containerd_identifier(name) && !ends_like_a_unit(name)).then(|| owned(name))
}

/// Whether this is a containerd namespace, in which users choose the names of containers. `default` is the namespace of
/// containerd's own tools, `moby` is that of Docker, and `k8s.io` is that of Kubernetes. Other names count only at the
/// top of the path, and only if they look like a domain name, because nothing else at the top looks like one.
pub(crate) fn is_containerd_namespace(name: &[u8], at_top: bool) -> bool {
    let others = name.starts_with(b"lxc.") || name.starts_with(b"incus.") || name.ends_with(b".partition");
    let like_a_domain = name.contains(&b'.') && is_containerd_identifier(name) && !ends_like_a_unit(name) && !others;
    matches!(name, b"default" | b"moby" | b"k8s.io") || at_top && like_a_domain
}

fn is_containerd_identifier(name: &[u8]) -> bool {
    let inner = name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    let ends = [name.first(), name.last()].into_iter().flatten().all(u8::is_ascii_alphanumeric);
    inner && ends && (1..=76).contains(&name.len())
}

fn ends_like_a_unit(name: &[u8]) -> bool {
    let endings: [&[u8]; 6] = [b".service", b".slice", b".scope", b".socket", b".mount", b".swap"];
    endings.iter().any(|ending| name.ends_with(ending))
}

/// The name of an LXC container after `lxc.payload.` or `incus.payload.`, as LXC, LXD and Incus write it. After
/// `lxc.payload` alone, or after `lxc`, the container is the next name in the path.
pub(crate) fn lxc_payload(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(b"lxc.payload.").or_else(|| name.strip_prefix(b"incus.payload."))
}

/// An LXC container's name.
pub(crate) fn lxc_name(name: &[u8]) -> Option<String> {
    graphic(name).filter(|_| !name.starts_with(b"lxc.") && !name.starts_with(b"incus."))
}

/// A container of libvirt's LXC driver: `<name>.libvirt-lxc`, or as a scope `machine-lxc\x2d<number>\x2d<name>`; older
/// versions write no number.
pub(crate) fn libvirt_container(name: &[u8]) -> Option<String> {
    let name = match name.strip_suffix(b".libvirt-lxc") {
        Some(name) => owned_graphic(name)?,
        None => machine_scope(name)?.strip_prefix("lxc-")?.to_owned(),
    };
    let name = name.strip_prefix("lxc-").unwrap_or(&name);
    let named = name.split_once('-').filter(|(number, name)| is_number(number.as_bytes()) && !name.is_empty());
    let name = named.map_or(name, |(_, name)| name);
    (!name.is_empty()).then(|| name.to_owned())
}

/// A systemd-nspawn machine, with the name in its unit, or a systemd-machined one, with the name in its scope.
/// libvirt's virtual machines are excluded.
pub(crate) fn machine(name: &[u8]) -> Option<String> {
    match name.strip_prefix(b"systemd-nspawn@").and_then(|rest| rest.strip_suffix(b".service")) {
        Some(instance) => unescape(instance),
        None => machine_scope(name).filter(|name| !name.starts_with("qemu-")),
    }
}

/// The name of a machine from its scope in `machine.slice`.
fn machine_scope(name: &[u8]) -> Option<String> {
    unescape(name.strip_prefix(b"machine-")?.strip_suffix(b".scope")?)
}

/// A Cloud Foundry Garden container: an instance's identifier, which is a UUID or the first 28 characters of one,
/// with an optional suffix.
pub(crate) fn garden_container(name: &[u8]) -> Option<String> {
    let tail = |length| name.split_at_checked(length).filter(|(_, tail)| tail.is_empty() || tail[0] == b'-');
    let is_handle =
        tail(36).is_some_and(|(uuid, _)| is_uuid(uuid)) || tail(28).is_some_and(|(short, _)| is_hex_parts(short, b'-'));
    is_handle.then(|| graphic(name))?
}

/// Whether Garden's containers are below this name: `garden`, `garden-<tag>`.
pub(crate) fn is_garden(name: &[u8]) -> bool {
    name == b"garden" || name.starts_with(b"garden-")
}

/// A name of printable ASCII, no longer than Linux allows.
pub(crate) fn graphic(name: &[u8]) -> Option<String> {
    owned_graphic(name).filter(|name| name.len() <= NAME_LENGTH)
}

fn owned_graphic(name: &[u8]) -> Option<String> {
    (!name.is_empty() && name.iter().all(u8::is_ascii_graphic)).then(|| owned(name))
}

/// Undoes systemd's escaping in the name of a unit: `\x2d` is a hyphen.
pub(crate) fn unescape(name: &[u8]) -> Option<String> {
    let text = graphic(name)?;
    let mut parts = text.split("\\x");
    let mut plain = parts.next()?.to_owned();
    for part in parts {
        let byte = u8::from_str_radix(part.get(..2)?, 16).ok()?;
        plain.push(char::from(byte));
        plain += &part[2..];
    }
    graphic(plain.as_bytes()).filter(|plain| !plain.contains('/'))
}

/// Whether the text is a UUID in lower case.
pub(crate) fn is_uuid(text: &[u8]) -> bool {
    text.len() == 36 && is_hex_parts(text, b'-')
}

/// Whether the text consists of hexadecimal digits, with hyphens at the positions of a UUID.
fn is_hex_parts(text: &[u8], hyphen: u8) -> bool {
    text.iter().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => *byte == hyphen,
        _ => is_hex(&[*byte]),
    })
}

/// Whether the kubelet's pods are below this name: `kubepods`, `kubepods.slice`, `kubelet-kubepods-burstable.slice`.
pub(crate) fn is_kubepods(name: &[u8]) -> bool {
    is_kubepods_stem(name.strip_suffix(b".slice").unwrap_or(name))
}

fn is_kubepods_stem(stem: &[u8]) -> bool {
    let stem = stem.strip_suffix(b"-burstable").or_else(|| stem.strip_suffix(b"-besteffort")).unwrap_or(stem);
    stem.strip_suffix(b"kubepods").is_some_and(|parent| matches!(parent, [] | [.., b'-']))
}

/// The uid of a pod from its slice, `kubepods-burstable-pod<uid>.slice`. Only the slice of `slice:prefix:id` is read.
pub(crate) fn pod_slice(name: &[u8]) -> Option<String> {
    let (slice, joined) = match name.iter().position(|byte| *byte == b':') {
        Some(colon) => (&name[..colon], true),
        None => (name, false),
    };
    let stem = match slice.strip_suffix(b".slice") {
        Some(stem) => stem,
        None if joined => slice,
        None => return None,
    };
    let at = stem.windows(4).rposition(|word| word == b"-pod")?;
    is_kubepods_stem(&stem[..at]).then(|| uid(&stem[at + 4..], b'_')).flatten()
}

/// The uid of a pod from its directory, `pod<uid>`.
pub(crate) fn pod_directory(name: &[u8]) -> Option<String> {
    name.strip_prefix(b"pod").and_then(|text| uid(text, b'-'))
}

/// A uid, with hyphens. The text has the character `hyphen` in their place, because in a slice's name a hyphen
/// separates levels. A static pod's uid has no hyphens.
fn uid(text: &[u8], hyphen: u8) -> Option<String> {
    if text.len() == SHORT_LENGTH {
        return is_hex(text).then(|| owned(text));
    }
    let is_uid = text.len() == 36 && is_hex_parts(text, hyphen);
    is_uid.then(|| text.iter().map(|byte| if *byte == hyphen { '-' } else { char::from(*byte) }).collect())
}

/// The top of Slurm's tree in version 1: `slurm`, or `slurm_<node>` if several slurmd daemons share a machine.
pub(crate) fn is_slurm(name: &[u8]) -> bool {
    name == b"slurm" || name.starts_with(b"slurm_")
}

/// A user's level in Slurm's version 1 tree.
pub(crate) fn is_slurm_uid(name: &[u8]) -> bool {
    name.strip_prefix(b"uid_").is_some_and(is_number)
}

/// The top of Slurm's tree in version 2.
pub(crate) fn is_slurm_scope(name: &[u8]) -> bool {
    name == b"slurmstepd.scope" || name.ends_with(b"_slurmstepd.scope")
}

/// A job by its number. From Slurm 26.05 on, version 2 has the job's SLUID instead, unless `CgroupJobIdPaths` is set:
/// `s` and thirteen characters, which Slurm's own commands accept too.
pub(crate) fn slurm_job(name: &[u8]) -> Option<String> {
    if let Some(number) = name.strip_prefix(b"job_") {
        return is_number(number).then(|| owned(number));
    }
    // The alphabet of a SLUID has no I, L, O or U.
    let is_digit =
        |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_uppercase() && !matches!(byte, b'I' | b'L' | b'O' | b'U');
    (name.len() == 14 && name[0] == b's' && name[1..].iter().all(is_digit)).then(|| owned(name))
}

/// A step: a number, a number with a component of a heterogeneous job (`0+1`), or one of Slurm's own steps.
pub(crate) fn slurm_step(name: &[u8]) -> Option<String> {
    let step = name.strip_prefix(b"step_")?;
    let is_step = match step {
        b"batch" | b"extern" | b"interactive" => true,
        _ => step.splitn(2, |byte| *byte == b'+').all(is_number),
    };
    is_step.then(|| owned(step))
}

/// Whether the name is that of a systemd slice.
pub(crate) fn is_slice(name: &[u8]) -> bool {
    name.ends_with(b".slice")
}

/// A unit that is not a slice, as systemd shows it. In a path, systemd puts an underscore before a name that begins
/// with one or that could collide with a file that the kernel creates.
pub(crate) fn unit_name(name: &[u8]) -> Option<String> {
    let name = name.strip_prefix(b"_").unwrap_or(name);
    let dot = name.iter().rposition(|byte| *byte == b'.')?;
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(byte);
    let is_type = matches!(&name[dot..], b".service" | b".scope" | b".socket" | b".mount" | b".swap");
    (dot > 0 && is_type && name.len() <= NAME_LENGTH && name.iter().all(is_name)).then(|| owned(name))
}

/// Whether a unit creates cgroups for containers of the whole machine.
pub(crate) fn is_runtime(name: &[u8]) -> bool {
    let service = name.strip_suffix(b".service").unwrap_or_default();
    RUNTIMES.split(' ').any(|runtime| runtime.as_bytes() == service)
}

/// Whether a user's part of the tree begins here. In version 1, `user` comes from pam_cgfs, which gives each login a
/// `/user/<name>/<number>` that the user may write to.
pub(crate) fn is_user(name: &[u8]) -> bool {
    slice_number(name).is_some_and(is_number)
        || name == b"user"
        || is_user_manager(name)
        || name.starts_with(b"session-") && name.ends_with(b".scope")
}

/// Whether the name is that of a user's own systemd.
pub(crate) fn is_user_manager(name: &[u8]) -> bool {
    manager_number(name).is_some_and(is_number)
}

/// The uid in the name of a user's slice or of a user's own systemd.
pub(crate) fn user_id(name: &[u8]) -> Option<u32> {
    let number = slice_number(name).or_else(|| manager_number(name)).filter(|number| is_number(number))?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

fn slice_number(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(b"user-")?.strip_suffix(b".slice")
}

fn manager_number(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(b"user@")?.strip_suffix(b".service")
}
