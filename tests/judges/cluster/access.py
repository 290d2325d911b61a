"""What the shipped role allows: to list and watch pods and ResourceSlices and to get ResourceClaims, and nothing else that a service
account without a role may not do."""

import json

from simulated import ACCOUNT

VERBS = (
    "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "bind", "escalate", "impersonate", "approve", "sign",
)  # fmt: skip
DRA = "resource.k8s.io"
PROMISED = {
    ("", "pods", "list"),
    ("", "pods", "watch"),
    (DRA, "resourceslices", "list"),
    (DRA, "resourceslices", "watch"),
    (DRA, "resourceclaims", "get"),
}


def review(cluster, token, namespace):
    """The rules that apply to a token: (group, resource, names, verb), and (path, verb)."""
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}
    status = cluster.ask("POST", path, body, token=token)["status"]
    if status["incomplete"]:
        raise SystemExit(f"the rules are incomplete: {status}")
    resources = {
        (group, resource, tuple(rule.get("resourceNames", [])), verb)
        for rule in status["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    paths = {(path, verb) for rule in status["nonResourceRules"] for path in rule["nonResourceURLs"] for verb in rule["verbs"]}
    return resources, paths


def resources(cluster):
    """Every resource and subresource of the API server, with its group."""
    prefixes = {"": "/api/v1"}
    for group in cluster.ask("GET", "/apis")["groups"]:
        prefixes[group["name"]] = f"/apis/{group['preferredVersion']['groupVersion']}"
    for group, prefix in prefixes.items():
        for resource in cluster.ask("GET", prefix)["resources"]:
            yield group, resource["name"]


def allowed(cluster, token, namespace):
    """Every (group, resource, verb) that the API server allows, asked one by one."""
    link = cluster.connection()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    asked, found = 0, set()
    for group, resource in sorted(set(resources(cluster))):
        name, _, subresource = resource.partition("/")
        for verb in VERBS:
            attributes = {"group": group, "resource": name, "subresource": subresource, "verb": verb, "namespace": namespace}
            body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
            link.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", json.dumps(body), headers)
            answer = link.getresponse()
            status = json.loads(answer.read())["status"]
            asked += 1
            if status["allowed"]:
                found.add((group, resource, verb))
    link.close()
    return asked, found


def check(cluster, token):
    """Yields every problem with the access of `token`, a token of the exporter's account."""
    cluster.create_account(ACCOUNT, "without-a-role")
    plain = cluster.token(ACCOUNT, "without-a-role")
    for namespace in (ACCOUNT, "kube-system"):
        mine, paths = review(cluster, token, namespace)
        theirs, their_paths = review(cluster, plain, namespace)
        expected = {(group, resource, (), verb) for group, resource, verb in PROMISED}
        if mine - theirs != expected or theirs - mine:
            yield f"rules in {namespace}: {sorted(mine ^ theirs)}, expected {sorted(expected)}"
        if paths != their_paths:
            yield f"paths in {namespace}: {sorted(paths ^ their_paths)}"
    asked, found = allowed(cluster, token, ACCOUNT)
    for_everyone = {(group, resource, verb) for group, resource, _, verb in theirs}
    if found != PROMISED | for_everyone:
        yield f"allowed: {sorted(found ^ (PROMISED | for_everyone))} differ from the promise"
    pod = f"/api/v1/namespaces/{ACCOUNT}/pods"
    requests = [
        ("GET", "/api/v1/pods", 200),
        ("GET", f"{pod}", 200),
        ("GET", f"{pod}/own", 403),
        ("GET", f"{pod}/own/log", 403),
        ("POST", pod, 403),
        ("DELETE", f"{pod}/own", 403),
        ("DELETE", pod, 403),
        ("GET", f"/apis/{DRA}/v1/resourceslices", 200),
        ("GET", f"/apis/{DRA}/v1/namespaces/{ACCOUNT}/resourceclaims/none", 404),
        ("GET", f"/apis/{DRA}/v1/resourceclaims", 403),
        ("GET", f"/apis/{DRA}/v1/deviceclasses", 403),
        ("GET", f"/api/v1/namespaces/{ACCOUNT}/secrets", 403),
        ("GET", "/api/v1/nodes", 403),
        ("GET", "/metrics", 403),
    ]
    for method, path, expected in requests:
        code = cluster.code(method, path, token, {} if method == "POST" else None)
        if code != expected:
            yield f"{method} {path}: {code}, expected {expected}"
    said = cluster.kubectl("auth", "can-i", "--list", f"--token={token}", f"--namespace={ACCOUNT}")
    lines = [line.split() for line in said.splitlines()]
    if ["pods", "[]", "[]", "[list", "watch]"] not in lines:
        yield f"kubectl auth can-i --list: {said}"
    print(f"ok  access: {asked} reviews of single permissions, {len(found - for_everyone)} allowed by the role; {len(requests)} requests")
