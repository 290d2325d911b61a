//! The runbook that the exporter serves: the HTML of `docs/runbook.md`, with a section for each alert.

use std::fs;
use std::path::{Path, PathBuf};

use generated_files::assert_committed;
use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd, html};

use crate::alerts::shipped;
use crate::web::Served;

const SOURCE: &str = "docs/runbook.md";
const PAGE: &str = "src/http/runbook.html";
const HEAD: &str = "<!DOCTYPE html>
<!-- Generated from docs/runbook.md: UPDATE_GOLDEN=1 cargo test --test it runbook -->
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<link rel=\"icon\" type=\"image/svg+xml\" href=\"/favicon.ico\">
<link rel=\"stylesheet\" href=\"/page.css\">
<title>Runbook – vram-exporter</title>
</head>
<body>
<main class=\"text\">
<p><a href=\"/\">GPUs of this machine</a></p>
";

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The path within the repository of what a link in `docs/` leads to.
fn target(link: &str) -> String {
    let path = link.split('#').next().unwrap_or_default();
    path.strip_prefix("../").map_or_else(|| format!("docs/{path}"), str::to_owned)
}

/// The events of the page. A heading of a section gets its name in lower case as its id. The exporter does not serve the other
/// files of the repository, so a link to one becomes its path.
fn events(markdown: &str) -> Vec<Event<'_>> {
    let mut out: Vec<Event<'_>> = Vec::new();
    let mut link = None;
    let mut heading = None;
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { level, .. }) => heading = Some((level, out.len())),
            Event::End(TagEnd::Heading(level)) => {
                let (_, start) = heading.take().unwrap();
                let text: String = out[start..].iter().filter_map(text).collect();
                let id = Some(CowStr::from(text.to_lowercase()));
                out.insert(start, Event::Start(Tag::Heading { level, id, classes: Vec::new(), attrs: Vec::new() }));
                out.push(Event::End(TagEnd::Heading(level)));
            }
            Event::Start(Tag::Link { ref dest_url, .. }) if !dest_url.starts_with('#') => {
                assert!(!dest_url.contains("://"), "{dest_url}: the page names no other host");
                link = Some((target(dest_url), out.len()));
            }
            Event::End(TagEnd::Link) if link.is_some() => {
                let (path, start) = link.take().unwrap();
                let text: String = out[start..].iter().filter_map(text).collect();
                if path.ends_with(&text) {
                    out.truncate(start);
                    out.push(Event::Code(path.into()));
                } else {
                    out.extend([Event::Text(" (".into()), Event::Code(path.into()), Event::Text(")".into())]);
                }
            }
            event => out.push(event),
        }
    }
    out
}

fn text<'a>(event: &'a Event<'_>) -> Option<&'a str> {
    match event {
        Event::Text(text) | Event::Code(text) => Some(text),
        _ => None,
    }
}

/// The names of the alerts, which are the names of the sections.
fn alerts(markdown: &str) -> Vec<&str> {
    markdown.lines().filter_map(|line| line.strip_prefix("## ")).collect()
}

/// The whole page.
fn generated(markdown: &str) -> String {
    let (introduction, sections) = markdown.split_at(markdown.find("\n## ").unwrap());
    let mut page = HEAD.to_owned();
    html::push_html(&mut page, events(introduction).into_iter());
    page.push_str("<nav aria-label=\"Alerts\">\n");
    for alert in alerts(sections) {
        page.push_str(&format!("<a href=\"#{}\">{alert}</a>\n", alert.to_lowercase()));
    }
    page.push_str("</nav>\n");
    html::push_html(&mut page, events(sections).into_iter());
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

#[test]
fn the_served_runbook_is_that_of_the_documentation() {
    let page = generated(&fs::read_to_string(file(SOURCE)).unwrap());
    assert_committed(&file(PAGE), &page);
}

#[test]
fn each_alert_has_a_section_at_the_address_that_its_link_names() {
    let server = Served::start();
    let answer = server.get("/runbook");
    assert_eq!((answer.status, answer.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(answer.header("content-security-policy").starts_with("default-src 'none'"));
    let page = &answer.body;
    assert!(!page.contains("<script") && !page.contains("style=") && !page.contains("http-equiv"), "{page}");
    let files = shipped::rules();
    let alerts =
        files.iter().flat_map(|(_, text)| text.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")));
    let mut count = 0;
    for alert in alerts {
        count += 1;
        assert!(page.contains(&format!("<h2 id=\"{}\">{alert}</h2>", alert.to_lowercase())), "{alert}");
    }
    assert!(count > 30, "{count} alerts");
    for link in page.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap_or_default()) {
        match link.strip_prefix('#') {
            Some(id) => assert!(page.contains(&format!("id=\"{id}\"")), "{link}"),
            None => assert_eq!(server.get(link).status, 200, "{link}"),
        }
    }
    let main = server.get("/");
    assert!(main.body.contains("href=\"/runbook\""), "the page links to it");
}
