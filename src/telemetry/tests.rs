//! Names and labels against DESIGN.md section 7, caps, and what a scrape costs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::Metrics;
use super::tools::{MAX_NAME, MAX_NAMED};
use crate::config::{RouteName, UpstreamName};
use crate::fault::Outcome;
use crate::mcp::{Era, ListKind, METHODS};

/// DESIGN.md section 7, as far as it has a meaning so far.
const DESIGN: &str = "
    exchanges_total{route,method,outcome} exchange_seconds{route,method}
    upstream_calls_total{upstream,method,outcome} upstream_call_seconds{upstream,method}
    tool_calls_total{upstream,tool,outcome} tool_call_seconds{upstream,tool}
    queue_wait_seconds{upstream} retries_total{upstream,reason} overhead_seconds{route} exchanges_in_flight{route}
    upstream_up{upstream} upstream_restarts_total{upstream} children{upstream}
    upstream_connections{upstream,state} sessions{route,era} streams{route,kind}
    parked_calls catalog_items{route,kind} catalog_tokens{route} batch_elements bytes_total{direction}
    build_info{version,os,arch}";

/// Own ones beyond the design.
const MORE: &str = "
    upstream_noise_lines_total{upstream} upstream_stray_messages_total{upstream}
    bytes_in_flight upstream_list_failures_total{upstream} streams_unreplayable_total{route} log_dropped_total";

fn route() -> RouteName {
    RouteName::new("/mcp").unwrap()
}

fn upstream(name: &str) -> UpstreamName {
    UpstreamName::new(name).unwrap()
}

/// A registry as it stands after start: one route, one upstream, no traffic.
fn started() -> Arc<Metrics> {
    let metrics = Metrics::new(&["eth_*".to_owned(), "other".to_owned()]);
    metrics.route(&route());
    metrics.upstream(&upstream("notes"));
    metrics
}

/// Value of one sample by its text before the space.
fn value(metrics: &Metrics, sample: &str) -> Option<f64> {
    let text = metrics.render();
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '))?;
    line.parse().ok()
}

/// Label names of each family of the gateway in a rendered text.
fn families(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut types = BTreeMap::new();
    let mut families: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            types.insert(name.to_owned(), kind.to_owned());
            continue;
        }
        let Some(sample) = line.strip_prefix("trunkline_") else { continue };
        let end = sample.find(['{', ' ']).unwrap();
        let mut name = &sample[..end];
        for suffix in ["_bucket", "_sum", "_count"] {
            let stem = name.strip_suffix(suffix).unwrap_or(name);
            if types.get(&format!("trunkline_{stem}")).is_some_and(|kind| kind == "histogram") {
                name = stem;
            }
        }
        let labels = families.entry(name.to_owned()).or_default();
        if let Some((inside, _)) = sample[end..].strip_prefix('{').and_then(|s| s.split_once('}')) {
            let keys = inside.split(',').map(|pair| pair.split_once('=').unwrap().0);
            labels.extend(keys.filter(|key| *key != "le").map(str::to_owned));
        }
    }
    families
}

fn expected(list: &str) -> BTreeMap<String, BTreeSet<String>> {
    list.split_whitespace()
        .map(|entry| match entry.split_once('{') {
            None => (entry.to_owned(), BTreeSet::new()),
            Some((name, labels)) => {
                let labels = labels.trim_end_matches('}').split(',');
                (name.to_owned(), labels.map(str::to_owned).collect())
            }
        })
        .collect()
}

#[test]
fn every_family_of_the_design_is_on_the_first_scrape_with_its_labels() {
    let mut all = expected(DESIGN);
    all.extend(expected(MORE));
    assert_eq!(families(&started().render()), all);
}

#[cfg(target_os = "linux")]
#[test]
fn process_metrics_are_rendered_under_their_usual_names() {
    let text = started().render();
    assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
    assert!(text.contains("\nprocess_cpu_seconds_total "), "{text}");
}

#[test]
fn an_exchange_is_counted_by_method_and_outcome_and_its_time_is_split() {
    let metrics = started();
    let handles = metrics.route(&route());
    let label = metrics.label("tools/call");
    handles.exchange_ended(label, Outcome::ToolError, ms(30), ms(25));
    handles.exchange_ended(label, Outcome::Ok, ms(2), ms(5));

    let of = |rest: &str| value(&metrics, &format!("trunkline_{rest}"));
    let total = |outcome: &str| {
        of(&format!(r#"exchanges_total{{method="tools/call",outcome="{outcome}",route="/mcp"}}"#))
    };
    assert_eq!(total("tool_error"), Some(1.0));
    assert_eq!(total("ok"), Some(1.0));
    assert_eq!(total("timeout"), None);
    let sum = of(r#"exchange_seconds_sum{method="tools/call",route="/mcp"}"#);
    assert!(sum.is_some_and(|sum| (sum - 0.032).abs() < 1e-9), "{sum:?}");
    // More time upstream than altogether (two calls of one exchange in parallel) is no negative overhead.
    let overhead = of(r#"overhead_seconds_sum{route="/mcp"}"#);
    assert!(overhead.is_some_and(|sum| (sum - 0.005).abs() < 1e-9), "{overhead:?}");
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn all_outcome_words_are_on_the_first_scrape() {
    let metrics = started();
    for outcome in Outcome::ALL {
        let word = outcome.as_str();
        let sample =
            format!(r#"trunkline_exchanges_total{{method="other",outcome="{word}",route="/mcp"}}"#);
        assert_eq!(value(&metrics, &sample), Some(0.0), "{word}");
    }
}

#[test]
fn known_methods_and_patterns_have_labels_and_the_rest_is_other() {
    let metrics = started();
    let other = metrics.label("other");
    let mut seen = BTreeSet::new();
    for spec in METHODS {
        let label = metrics.label(spec.name);
        assert_ne!(label, other, "{}", spec.name);
        seen.insert(format!("{label:?}"));
    }
    assert_eq!(seen.len(), METHODS.len());
    assert_ne!(metrics.label("eth_*"), other);
    for unknown in ["eth_call", "", "TOOLS/CALL", "tools/call ", "\u{0}"] {
        assert_eq!(metrics.label(unknown), other, "{unknown}");
    }
}

#[test]
fn unknown_methods_make_no_series() {
    let metrics = started();
    let handles = metrics.route(&route());
    let upstream = metrics.upstream(&upstream("notes"));
    let record = |method: &str| {
        let label = metrics.label(method);
        handles.exchange_ended(label, Outcome::Ok, ms(1), ms(0));
        upstream.call_ended(label, Outcome::Ok, ms(1));
    };
    record("warm");
    let before = lines(&metrics);
    for n in 0..2_000 {
        record(&format!("attack/{n}"));
    }
    assert_eq!(lines(&metrics), before);
}

/// Lines of the gateway's own families.
fn lines(metrics: &Metrics) -> usize {
    metrics.render().lines().filter(|line| line.starts_with("trunkline_")).count()
}

#[test]
fn sessions_and_streams_that_come_and_go_leave_no_series() {
    let metrics = started();
    let handles = metrics.route(&route());
    let before = lines(&metrics);
    for _ in 0..5_000 {
        handles.sessions(Era::Legacy).inc();
        handles.streams("get").inc();
        handles.streams("get").dec();
        handles.sessions(Era::Legacy).dec();
    }
    assert_eq!(lines(&metrics), before);
    let sessions = r#"trunkline_sessions{era="legacy",route="/mcp"}"#;
    assert_eq!(value(&metrics, sessions), Some(0.0));
}

#[test]
fn gauges_of_a_route_are_told_apart() {
    let metrics = started();
    let handles = metrics.route(&route());
    handles.sessions(Era::Modern).set(2);
    handles.streams("post").set(3);
    handles.catalog_tokens().set(4);
    for (n, kind) in (5..).zip(ListKind::ALL) {
        handles.catalog_items(kind).set(n);
    }
    let of = |sample: &str| value(&metrics, &format!("trunkline_{sample}"));
    assert_eq!(of(r#"sessions{era="modern",route="/mcp"}"#), Some(2.0));
    assert_eq!(of(r#"sessions{era="legacy",route="/mcp"}"#), Some(0.0));
    assert_eq!(of(r#"streams{kind="post",route="/mcp"}"#), Some(3.0));
    assert_eq!(of(r#"streams{kind="get",route="/mcp"}"#), Some(0.0));
    assert_eq!(of(r#"catalog_tokens{route="/mcp"}"#), Some(4.0));
    for (n, kind) in [(5.0, "tools"), (6.0, "prompts"), (7.0, "resources"), (8.0, "templates")] {
        assert_eq!(of(&format!(r#"catalog_items{{kind="{kind}",route="/mcp"}}"#)), Some(n));
    }
}

#[test]
fn handles_of_one_name_are_the_same_ones() {
    let metrics = started();
    assert!(Arc::ptr_eq(&metrics.route(&route()), &metrics.route(&route())));
    let name = upstream("notes");
    assert!(Arc::ptr_eq(&metrics.upstream(&name), &metrics.upstream(&name)));
    let tool = metrics.tool(&name, "echo");
    assert!(Arc::ptr_eq(&tool, &metrics.tool(&name, "echo")));
    assert!(!Arc::ptr_eq(&tool, &metrics.tool(&upstream("files"), "echo")));
}

#[test]
fn a_tool_goes_on_counting_when_its_catalog_was_rebuilt() {
    let metrics = started();
    for _ in 0..3 {
        metrics.tool(&upstream("notes"), "echo").call_ended(Outcome::Ok, ms(1));
    }
    let sample = r#"trunkline_tool_calls_total{outcome="ok",tool="echo",upstream="notes"}"#;
    assert_eq!(value(&metrics, sample), Some(3.0));
}

#[test]
fn tools_beyond_the_cap_and_overlong_names_are_other() {
    let metrics = started();
    let notes = upstream("notes");
    let call = |tool: &str| metrics.tool(&notes, tool).call_ended(Outcome::Ok, ms(1));
    call(&"x".repeat(MAX_NAME + 1));
    for n in 0..MAX_NAMED + 20 {
        call(&format!("tool-{n}"));
    }
    call("tool-0");
    let of = |tool: &str| {
        value(
            &metrics,
            &format!(
                r#"trunkline_tool_calls_total{{outcome="ok",tool="{tool}",upstream="notes"}}"#
            ),
        )
    };
    assert_eq!(of("other"), Some(21.0));
    assert_eq!(of("tool-0"), Some(2.0));
    assert_eq!(of(&format!("tool-{}", MAX_NAMED - 1)), Some(1.0));
    assert_eq!(of(&format!("tool-{MAX_NAMED}")), None);
}

#[test]
fn a_tool_that_is_listed_but_never_called_makes_no_series() {
    let metrics = started();
    let before = lines(&metrics);
    let listed: Vec<_> =
        (0..500).map(|n| metrics.tool(&upstream("notes"), &format!("tool-{n}"))).collect();
    assert_eq!(lines(&metrics), before);
    drop(listed);
}

#[test]
fn a_scrape_of_many_upstreams_and_tools_stays_under_two_megabytes() {
    let metrics = Metrics::new(&[]);
    metrics.route(&route()).exchange_ended(metrics.label("tools/call"), Outcome::Ok, ms(3), ms(1));
    let mut tools = Vec::new();
    for n in 0..50 {
        let name = upstream(&format!("upstream-{n}"));
        let handles = metrics.upstream(&name);
        handles.call_ended(metrics.label("tools/call"), Outcome::Ok, ms(3));
        handles.call_ended(metrics.label("tools/list"), Outcome::Ok, ms(3));
        for tool in 0..2_000 {
            let tool = metrics.tool(&name, &format!("a_tool_of_some_length_{tool}"));
            tool.call_ended(Outcome::Ok, ms(3));
            tool.call_ended(Outcome::ToolError, ms(3));
            tools.push(tool);
        }
    }
    let begun = std::time::Instant::now();
    let text = metrics.render();
    eprintln!("scrape: {} bytes, {:?}", text.len(), begun.elapsed());
    assert!(text.len() < 2_000_000, "{} bytes", text.len());
}
