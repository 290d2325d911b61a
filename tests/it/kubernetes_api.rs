//! The follower of the API server against a double that speaks HTTP: every case ends with correct names or none, never
//! with wrong ones, and the follower recovers without a restart.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpu_readings::faults::{Faults, Reason, Source};
use gpu_readings::snapshot::Snapshot;
use hyper::body::Bytes;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use vram_exporter::kubernetes::api::{LIST_AGAIN, Server, Settings, follow};

use crate::api_server::{ApiServer, Authority, Trouble, eventually, pod, status};

/// The exporter's side, running.
struct Watch {
    snapshot: Arc<Snapshot>,
    faults: Arc<Faults>,
    task: JoinHandle<()>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watch {
    fn start(server: &ApiServer) -> Self {
        Self::at(server.url(), None, None, Duration::from_secs(20))
    }

    /// With a timeout that is short enough for a test to wait for.
    fn start_impatient(server: &ApiServer) -> Self {
        Self::at(server.url(), None, None, Duration::from_millis(500))
    }

    fn at(url: String, token_file: Option<PathBuf>, ca_file: Option<PathBuf>, timeout: Duration) -> Self {
        Self::with(Server::At { url, token_file, ca_file }, timeout, LIST_AGAIN)
    }

    /// Lists everything again once a second.
    fn start_listing(server: &ApiServer) -> Self {
        let at = Server::At { url: server.url(), token_file: None, ca_file: None };
        Self::with(at, Duration::from_secs(60), Duration::from_secs(1))
    }

    fn with(server: Server, timeout: Duration, list_again: Duration) -> Self {
        let (snapshot, faults) = (Snapshot::new(), Arc::new(Faults::default()));
        let settings = Settings { server, node: "node-1".to_owned(), timeout, list_again, labels: Arc::default() };
        let task = tokio::spawn(follow(settings, snapshot.clone(), faults.clone()));
        Self { snapshot, faults, task }
    }

    fn up(&self) -> Option<bool> {
        self.snapshot.pods.load().up
    }

    /// The published names: id → `namespace/pod/container`.
    fn names(&self) -> BTreeMap<String, String> {
        let pods = self.snapshot.pods.load();
        let name = |(id, of): (&String, &Arc<gpu_readings::snapshot::PodContainer>)| {
            (id.clone(), format!("{}/{}/{}", of.namespace, of.pod, of.container))
        };
        pods.containers.iter().map(name).collect()
    }

    fn faults(&self, reason: Reason) -> u64 {
        self.faults.count(Source::KubernetesApi, reason)
    }

    fn all_faults(&self) -> u64 {
        self.faults.counts().map(|(_, _, count)| count).sum()
    }

    /// Waits until exactly these ids have these names and the server counts as responding.
    async fn shows(&self, expected: &[(&str, &str)]) {
        let expected: BTreeMap<_, _> = expected.iter().map(|(id, of)| ((*id).to_owned(), (*of).to_owned())).collect();
        eventually(&format!("{expected:?}"), || self.up() == Some(true) && self.names() == expected).await;
    }

    async fn fails(&self, reason: Reason) {
        eventually(&format!("{reason:?}"), || self.faults(reason) > 0 && self.up() == Some(false)).await;
    }
}

/// Waits until a watch is open, so that the next change is an event.
async fn watched(server: &ApiServer) {
    eventually("a watch", || server.open_watches() > 0).await;
}

const ONE: (&str, &str) = ("c1", "team/trainer/main");

fn one() -> serde_json::Value {
    pod("team", "trainer", &[("main", "containerd://c1")])
}

const WEB: (&str, &str) = ("c2", "team/web/app");

fn web() -> serde_json::Value {
    pod("team", "web", &[("app", "docker://c2")])
}

/// A server with one pod.
async fn serving() -> ApiServer {
    let server = ApiServer::start().await;
    server.put(one());
    server
}

/// A server with one pod, which is shown and watched.
async fn following() -> (ApiServer, Watch) {
    let server = serving().await;
    let watch = Watch::start(&server);
    watch.shows(&[ONE]).await;
    watched(&server).await;
    (server, watch)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_listed_then_watched_and_nothing_else_is_asked() {
    let server = serving().await;
    let mut elsewhere = pod("team", "elsewhere", &[("main", "containerd://other")]);
    elsewhere["spec"]["nodeName"] = json!("node-2");
    server.put(elsewhere.clone());
    let watch = Watch::start(&server);
    watch.shows(&[ONE]).await;
    watched(&server).await;

    server.put(pod("team", "web", &[("app", "docker://c2"), ("proxy", "cri-o://c3")]));
    let three = ("c3", "team/web/proxy");
    watch.shows(&[ONE, WEB, three]).await;
    server.put(elsewhere);
    // The container restarts: its new id has the same name, and the old id stays for a process that may still be
    // running.
    server.put(pod("team", "trainer", &[("main", "containerd://c4")]));
    let four = ("c4", "team/trainer/main");
    watch.shows(&[ONE, WEB, three, four]).await;
    // The id of a deleted pod stays, too. The pod that is added afterwards shows that the deletion was
    // processed.
    server.delete("team", "web");
    server.put(pod("team", "last", &[("main", "containerd://c5")]));
    let five = ("c5", "team/last/main");
    watch.shows(&[ONE, WEB, three, four, five]).await;

    for request in server.requests() {
        assert_eq!((request.method.as_str(), request.path.as_str()), ("GET", "/api/v1/pods"));
        assert_eq!(request.query["fieldSelector"], "spec.nodeName=node-1");
        assert_eq!(request.token, None);
    }
    assert_eq!(server.lists().len(), 1);
    assert_eq!(server.lists()[0].query["resourceVersion"], "0");
    let has_limit = server.lists()[0].query.contains_key("limit");
    assert!(!has_limit, "a limit would make the server read every pod of the cluster");
    assert_eq!(server.watches()[0].query["allowWatchBookmarks"], "true");
    assert_eq!(watch.all_faults(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_in_pages_is_published_whole_and_once() {
    let server = ApiServer::start().await;
    for n in 0..500 {
        server.put(pod("team", &format!("p{n:03}"), &[("main", &format!("containerd://id{n:03}"))]));
    }
    server.page(120);
    let watch = Watch::start(&server);
    let sizes = async {
        let mut sizes = Vec::new();
        while sizes.last() != Some(&500) {
            let size = watch.names().len();
            if sizes.last() != Some(&size) {
                sizes.push(size);
            }
            tokio::task::yield_now().await;
        }
        sizes
    };
    let sizes = tokio::time::timeout(crate::api_server::PATIENCE, sizes).await.unwrap();
    assert!(sizes == [0, 500] || sizes == [500], "{sizes:?}");
    let tokens: Vec<_> = server.lists().iter().map(|request| request.query.get("continue").cloned()).collect();
    let token = |from: &str| Some(from.to_owned());
    assert_eq!(tokens, [None, token("from-120"), token("from-240"), token("from-360"), token("from-480")]);
    assert_eq!(watch.names()["id499"], "team/p499/main");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_watch_goes_on_from_the_last_version() {
    let (server, watch) = following().await;
    let version = server.bookmark();
    // The usual end: the watch's time is up.
    server.end_watches();
    server.put(web());
    watch.shows(&[ONE, WEB]).await;
    assert_eq!(server.watches().last().unwrap().query["resourceVersion"], version.to_string());

    // The watch breaks in the middle of a line: the next watch delivers the whole event.
    watched(&server).await;
    server.send(b"{\"type\":\"ADDED\",\"object\":{\"kind\":\"Pod\",\"metadata\":{\"name\":\"half\",\"namesp");
    server.cut();
    server.put(pod("team", "late", &[("main", "docker://c3")]));
    let three = ("c3", "team/late/main");
    watch.shows(&[ONE, WEB, three]).await;
    assert_eq!(server.watches().last().unwrap().query["resourceVersion"], (version + 1).to_string());

    // The watch breaks between two lines, and the next one breaks right after it has begun.
    watched(&server).await;
    server.cut();
    watched(&server).await;
    server.cut();
    server.put(pod("team", "later", &[("main", "docker://c4")]));
    watch.shows(&[ONE, WEB, three, ("c4", "team/later/main")]).await;
    assert_eq!(server.lists().len(), 1, "nothing was lost, so nothing is listed again");
    assert_eq!(watch.all_faults(), watch.faults(Reason::Connection));
    assert!(watch.all_faults() <= 1, "the fourth short one in a row is a fault, the three before it are not");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_version_leads_to_a_new_list_and_is_no_fault() {
    for as_status in [false, true] {
        let (server, watch) = following().await;
        server.expire(as_status);
        server.put(web());
        server.expire(as_status);
        // The event that was just sent is too old as well.
        server.cut();
        server.put(pod("team", "late", &[("main", "docker://c3")]));
        watch.shows(&[ONE, WEB, ("c3", "team/late/main")]).await;
        assert_eq!((server.lists().len(), watch.all_faults()), (2, 0), "as a status: {as_status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_two_servers_an_unknown_list_is_repeated_and_is_no_fault() {
    for as_status in [false, true] {
        let (server, watch) = following().await;
        server.fall_behind(2);
        server.put(web());
        watch.shows(&[ONE, WEB]).await;
        server.expire(as_status);
        server.cut();
        // A 410 for the broken watch, and one for each list from the server that is behind.
        eventually("three more lists", || {
            assert_eq!(watch.names().len(), 2, "an older list removes no name");
            server.lists().len() == 1 + 3
        })
        .await;
        watched(&server).await;
        server.put(pod("team", "late", &[("main", "docker://c3")]));
        watch.shows(&[ONE, WEB, ("c3", "team/late/main")]).await;
        assert_eq!((server.lists().len(), watch.all_faults()), (1 + 3, 0), "as a status: {as_status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_that_never_know_the_lists_are_a_fault_and_names_are_shown() {
    let server = serving().await;
    server.watch_with(Some(refusal(410, &status(410, "too old resource version"))));
    let watch = Watch::start(&server);
    watch.fails(Reason::Unknown).await;
    assert!(server.lists().len() >= 4, "three in a row can happen by chance");
    assert_eq!(watch.names().len(), 1);
    server.watch_with(None);
    watch.shows(&[ONE]).await;
    assert_eq!(watch.faults(Reason::Unknown), watch.all_faults());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn until_all_is_listed_again_the_pods_do_not_count_as_followed() {
    let server = serving().await;
    let watch = Watch::at(server.url(), None, None, Duration::from_secs(8));
    watch.shows(&[ONE]).await;
    watched(&server).await;
    server.list_with(Some(Trouble::Silence));
    server.expire(false);
    server.cut();
    eventually("down without a fault", || watch.up() == Some(false) && watch.all_faults() == 0).await;
    assert_eq!(watch.names().len(), 1, "the names stay");
    server.list_with(None);
    watch.shows(&[ONE]).await;
}

fn refusal(code: u16, text: &str) -> Trouble {
    Trouble::Status(code, text.to_owned(), None)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_fails_is_counted_gives_no_name_and_is_tried_again() {
    let refused = [
        (401, Reason::NoPermission),
        (403, Reason::Unknown),
        (404, Reason::NotFound),
        (410, Reason::Unknown),
        (429, Reason::Unknown),
        (500, Reason::Unknown),
        (504, Reason::Timeout),
    ];
    let no_lists = [
        "<html>a login page</html>",
        "",
        "{\"items\":[",
        "[]",
        "{\"kind\":\"PodList\",\"metadata\":{},\"items\":[]}",
        "{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[{\"metadata\":{\"name\":7}}]}",
    ];
    let refused = refused.map(|(code, reason)| (code.to_string(), refusal(code, &status(code, "no")), reason));
    let no_lists = no_lists.map(|text| (text.to_owned(), Trouble::Text(text.to_owned()), Reason::Malformed));
    let others = [
        ("silence".to_owned(), Trouble::Silence, Reason::Timeout),
        ("an endless list".to_owned(), endless(), Reason::Malformed),
    ];
    for (what, trouble, reason) in refused.into_iter().chain(no_lists).chain(others) {
        let server = serving().await;
        server.list_with(Some(trouble));
        let watch = if what == "silence" { Watch::start_impatient(&server) } else { Watch::start(&server) };
        watch.fails(reason).await;
        assert!(watch.names().is_empty(), "{what}");
        server.list_with(None);
        watch.shows(&[ONE]).await;
        assert_eq!(watch.faults(reason), watch.all_faults(), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_watch_keeps_the_names_and_goes_on() {
    let redirects = [301, 302, 304, 307].map(|code| (code, Reason::Unknown));
    let refused = [(401, Reason::NoPermission), (403, Reason::Unknown), (500, Reason::Unknown)];
    for (code, reason) in refused.into_iter().chain(redirects) {
        let (server, watch) = following().await;
        server.watch_with(Some(refusal(code, "a proxy's words")));
        server.cut();
        watch.fails(reason).await;
        assert_eq!(watch.names().len(), 1, "the names stay");
        eventually("another refusal", || watch.all_faults() >= 2).await;
        server.watch_with(None);
        // No event arrives: it is enough that the watch begins.
        watch.shows(&[ONE]).await;
        let refused = server.watches().len() as u64 - 2;
        assert_eq!(refused, watch.all_faults(), "{code}: each request was counted, and followed by a pause");
        server.put(web());
        watch.shows(&[ONE, WEB]).await;
        assert_eq!(server.lists().len(), 1, "{code}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_after_of_a_busy_server_is_kept() {
    let server = serving().await;
    server.list_with(Some(Trouble::Status(429, "Too many requests".to_owned(), Some(3))));
    let watch = Watch::start(&server);
    watch.fails(Reason::Unknown).await;
    server.list_with(None);
    watch.shows(&[ONE]).await;
    let asked = server.lists();
    assert_eq!(asked.len(), 2);
    let apart = asked[1].at - asked[0].at;
    assert!(apart >= Duration::from_secs(3), "{apart:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_garbage_in_a_watch_all_pods_are_listed_again() {
    let lines: [&[u8]; 4] = [
        b"this is not an event\n",
        b"{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"name\":\"trainer\",\"namespace\":\"team\"}}}\n",
        b"{\"type\":\"ADDED\",\"object\":{\"metadata\":7}}\n",
        b"\xff\xfe\n",
    ];
    for line in lines {
        let (server, watch) = following().await;
        server.delete_unseen("team", "trainer");
        server.send(line);
        watch.fails(Reason::Malformed).await;
        server.put(web());
        watch.shows(&[ONE, WEB]).await;
        eventually("a new list", || server.lists().len() > 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_whose_server_accepts_the_request_and_is_silent_times_out() {
    let server = serving().await;
    let watch = Watch::start_impatient(&server);
    watch.shows(&[ONE]).await;
    watched(&server).await;
    let before = watch.faults(Reason::Timeout);
    server.watch_with(Some(Trouble::Silence));
    server.cut();
    eventually("a silent watch", || watch.faults(Reason::Timeout) > before && watch.up() == Some(false)).await;
    assert_eq!(watch.names().len(), 1);
    server.watch_with(None);
    watch.shows(&[ONE]).await;
    assert_eq!(watch.faults(Reason::Timeout), watch.all_faults());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_accepts_a_connection_and_is_silent_times_out() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.crt");
    Authority::new().write(&ca);
    for scheme in ["http", "https"] {
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let watch = Watch::at(url, None, Some(ca.clone()), Duration::from_millis(300));
        watch.fails(Reason::Timeout).await;
        assert_eq!((watch.faults(Reason::Timeout), watch.names().len()), (watch.all_faults(), 0), "{scheme}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_crashes_on_each_request_is_asked_less_and_less() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let watch = Watch::at(url, None, None, Duration::from_secs(20));
    let mut asked = Vec::new();
    for _ in 0..5 {
        let (mut stream, _) = listener.accept().await.unwrap();
        asked.push(std::time::Instant::now());
        let mut question = [0; 4096];
        assert!(stream.read(&mut question).await.unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n{\"items\":[").await.unwrap();
    }
    // Pauses of 1, 2, 4 and 8 s, each shortened by up to half. The shorter pauses for a server that is not
    // listening would add up to 7 s at most.
    assert!(asked[4] - asked[0] >= Duration::from_millis(7_500));
    assert!(watch.faults(Reason::Connection) >= 4);
    assert_eq!(watch.faults(Reason::Connection), watch.all_faults());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_events_is_published_together() {
    let server = ApiServer::start().await;
    let watch = Watch::start(&server);
    watch.shows(&[]).await;
    watched(&server).await;
    let begin = std::time::Instant::now();
    for n in 0..300 {
        server.put(pod("team", &format!("p{n}"), &[("main", &format!("docker://{n}"))]));
    }
    let mut published = vec![watch.snapshot.pods.load().containers.clone()];
    let all = async {
        while watch.names().len() < 300 {
            let now = watch.snapshot.pods.load().containers.clone();
            if !Arc::ptr_eq(published.last().unwrap(), &now) {
                published.push(now);
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::api_server::PATIENCE, all).await.unwrap();
    let most = begin.elapsed().as_millis() / 100 + 2;
    assert!(published.len() as u128 <= most, "{} in {:?}", published.len(), begin.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outside_a_pod_in_cluster_fails_and_nothing_else_is_tried() {
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return;
    }
    let watch = Watch::with(Server::InCluster, Duration::from_secs(1), LIST_AGAIN);
    watch.fails(Reason::NotFound).await;
    assert_eq!(watch.faults(Reason::NotFound), watch.all_faults());
}

fn endless() -> Trouble {
    Trouble::Flood(Bytes::from(vec![b' '; 1 << 20]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_of_a_watch_without_an_end_is_cut_off() {
    let server = serving().await;
    server.watch_with(Some(endless()));
    let watch = Watch::start(&server);
    eventually("an endless line", || watch.faults(Reason::Malformed) > 0).await;
    server.watch_with(None);
    watch.shows(&[ONE]).await;
    assert_eq!(watch.faults(Reason::Malformed), watch.all_faults());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_have_ended_are_left_out_where_they_make_the_list_too_long() {
    let server = serving().await;
    // Eighteen jobs of 1 MiB are as large as about two thousand of the usual size.
    for n in 0..18 {
        let mut job = pod("team", &format!("job-{n}"), &[("main", &format!("containerd://j{n}"))]);
        job["status"]["phase"] = json!(if n % 2 == 0 { "Succeeded" } else { "Failed" });
        job["metadata"]["managedFields"] = json!("x".repeat(1 << 20));
        server.put(job);
    }
    let watch = Watch::start(&server);
    watch.shows(&[ONE]).await;
    watched(&server).await;
    server.put(web());
    watch.shows(&[ONE, WEB]).await;
    assert_eq!((watch.faults(Reason::Malformed), watch.all_faults()), (1, 1));
    assert_eq!(server.lists().len(), 2);
    let selectors: Vec<_> = server.requests().iter().map(|request| request.query["fieldSelector"].clone()).collect();
    assert_eq!(selectors[0], "spec.nodeName=node-1");
    assert!(selectors[1..].iter().all(|of| of == "spec.nodeName=node-1,status.phase!=Succeeded,status.phase!=Failed"));
}

/// A server whose list, over all its pages, is longer than a client may keep: each case states its trouble and its words.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_is_bounded_over_all_its_pages_and_the_names_stay() {
    let (padding, many) = ("x".repeat(6 << 20), vec![json!({}); 30_000]);
    let metadata = json!({"resourceVersion": "1"});
    for (what, items) in [
        ("the same page again", json!([one()])),
        ("pages without pods", json!([])),
        ("more bytes than a list may have", json!([{"metadata": {"managedFields": padding}}])),
        ("more pods than a list may have", json!(many)),
    ] {
        let server = serving().await;
        let watch = Watch::start_listing(&server);
        watch.shows(&[ONE]).await;
        let repeated = what == "the same page again";
        let page = json!({"kind": "PodList", "metadata": metadata, "items": items});
        server.list_with(Some(Trouble::Pages { page, repeated }));
        eventually(what, || {
            server.end_watches();
            watch.faults(Reason::Malformed) > 0
        })
        .await;
        assert_eq!(watch.names().len(), 1, "{what}: the names stay");
        assert!(server.lists().len() < 500, "{what}: {} lists", server.lists().len());
        server.list_with(None);
        watch.shows(&[ONE]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_later_or_goes_and_comes_back_is_followed() {
    let mut server = serving().await;
    server.stop().await;
    let watch = Watch::start(&server);
    assert!(watch.names().is_empty());
    watch.fails(Reason::Connection).await;
    server.resume().await;
    watch.shows(&[ONE]).await;
    watched(&server).await;
    let before = watch.faults(Reason::Connection);
    server.stop().await;
    eventually("it is gone", || watch.up() == Some(false) && watch.faults(Reason::Connection) > before).await;
    assert_eq!(watch.names().len(), 1, "the names stay");
    server.put(web());
    server.resume().await;
    watch.shows(&[ONE, WEB]).await;
    assert_eq!(server.lists().len(), 1);
    assert_eq!(watch.faults(Reason::Connection), watch.all_faults());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_store_was_restored_is_followed_after_the_next_list() {
    let mut server = serving().await;
    for _ in 0..9 {
        server.bookmark();
    }
    let watch = Watch::start_listing(&server);
    watch.shows(&[ONE]).await;
    server.stop().await;
    server.restore();
    server.put(web());
    server.resume().await;
    // The new pod has a version older than the one from which the watch continues, so only a list shows it.
    eventually("the new pod", || {
        server.end_watches();
        watch.names().contains_key("c2")
    })
    .await;
    watch.shows(&[ONE, WEB]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_that_end_at_once_are_started_with_growing_pauses() {
    let server = serving().await;
    server.watch_with(Some(Trouble::Text(String::new())));
    let watch = Watch::start(&server);
    eventually("four watches", || server.watches().len() >= 4).await;
    let watches = server.watches();
    // Pauses of 1, 2 and 4 s, each shortened by up to half.
    assert!(watches[3].at - watches[0].at >= Duration::from_millis(3_400));
    watch.fails(Reason::Connection).await;
    assert_eq!(watch.names().len(), 1, "the names stay");
    server.watch_with(None);
    watch.shows(&[ONE]).await;
    assert_eq!(watch.faults(Reason::Connection), watch.all_faults());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_named_authority_is_trusted() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let server = ApiServer::start_tls(&ours).await;
    server.put(one());
    let folder = tempfile::tempdir().unwrap();
    let (ca, token) = (folder.path().join("ca.crt"), folder.path().join("token"));
    // First no file, then the wrong authority, then the right one, without a restart.
    let watch = Watch::at(server.url(), Some(token.clone()), Some(ca.clone()), Duration::from_secs(20));
    watch.fails(Reason::NotFound).await;
    std::fs::write(&token, "first\n").unwrap();
    theirs.write(&ca);
    watch.fails(Reason::Connection).await;
    assert!(server.requests().is_empty(), "no other server gets the token");
    assert!(watch.names().is_empty());
    ours.write(&ca);
    watch.shows(&[ONE]).await;
    assert!(server.requests().iter().all(|request| request.token.as_deref() == Some("first")));

    // An authority that is removed from the file is no longer trusted, and is trusted again once it is back; the
    // watch continues.
    watched(&server).await;
    let (before, lists) = (watch.faults(Reason::Connection), server.lists().len());
    theirs.write(&ca);
    server.cut();
    eventually("a refusal", || watch.faults(Reason::Connection) > before).await;
    assert_eq!(watch.names().len(), 1, "what was known stays");
    ours.write(&ca);
    server.put(web());
    watch.shows(&[ONE, WEB]).await;
    assert_eq!(server.lists().len(), lists, "the watch continued");

    let unnamed = Watch::at(server.url(), None, None, Duration::from_secs(20));
    unnamed.fails(Reason::Connection).await;
    assert!(unnamed.names().is_empty(), "without a file the system's authorities are trusted, and no others");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_token_is_used_at_once() {
    let authority = Authority::new();
    let server = ApiServer::start_tls(&authority).await;
    server.put(one());
    server.accept_token("right");
    let folder = tempfile::tempdir().unwrap();
    let (ca, token) = (folder.path().join("ca.crt"), folder.path().join("token"));
    authority.write(&ca);
    std::fs::write(&token, "wrong").unwrap();
    let watch = Watch::at(server.url(), Some(token.clone()), Some(ca), Duration::from_secs(20));
    watch.fails(Reason::NoPermission).await;
    std::fs::write(&token, "right").unwrap();
    watch.shows(&[ONE]).await;
    watched(&server).await;

    // Rotation: the server no longer accepts the old token, and the file holds the new one.
    let before = watch.all_faults();
    std::fs::write(&token, "newer").unwrap();
    server.accept_token("newer");
    server.cut();
    server.put(web());
    watch.shows(&[ONE, WEB]).await;
    assert_eq!(watch.all_faults(), before);

    // The file is removed.
    std::fs::remove_file(&token).unwrap();
    server.cut();
    watch.fails(Reason::NotFound).await;
    assert_eq!(watch.names().len(), 2);
    std::fs::write(&token, "newer").unwrap();
    watch.shows(&[ONE, WEB]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes more than a minute: run it by hand with --ignored"]
async fn a_watch_that_is_silently_dead_is_noticed() {
    let (server, _watch) = following().await;
    // The double never ends a watch by itself, like a server behind a dead connection.
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(server.watches().len(), 1);
    eventually("another watch", || server.watches().len() == 2).await;
    assert!(server.watches()[1].at - server.watches()[0].at < Duration::from_secs(75));
}
