//! Whole files, and what is said of them.

use std::time::Duration;

use super::*;

fn env(name: &str) -> Option<String> {
    match name {
        "TOKEN" => Some("s3cret".to_owned()),
        "INJECT" => Some("x\"\nmax_batch = 1\n#".to_owned()),
        _ => None,
    }
}

fn read(text: &str) -> Result<Checked, ConfigError> {
    parse(text, "t.toml", &env)
}

fn config(text: &str) -> Config {
    read(text).unwrap_or_else(|error| panic!("{error}")).config
}

/// Every problem as `line:column: message`.
fn problems(text: &str) -> Vec<String> {
    match read(text) {
        Ok(_) => Vec::new(),
        Err(ConfigError::Invalid(problems)) => lines(&problems),
        Err(other) => vec![other.to_string()],
    }
}

fn warnings(text: &str) -> Vec<String> {
    lines(&read(text).unwrap_or_else(|error| panic!("{error}")).warnings)
}

fn lines(problems: &Problems) -> Vec<String> {
    problems.iter().map(|problem| problem.to_string().replacen("t.toml:", "", 1)).collect()
}

/// A file with one upstream of each kind, each with a route; `more` comes in front.
fn good(more: &str) -> String {
    format!(
        "{more}\n[upstreams.a]\ncommand = [\"x\"]\n[upstreams.b]\nurl = \"http://b/mcp\"\n\
         [upstreams.c]\nprotocol = \"jsonrpc\"\nurl = \"http://c/\"\n\
         [[routes]]\npath = \"/mcp\"\nupstreams = [\"a\", \"b\"]\n\
         [[routes]]\npath = \"/rpc\"\nprotocol = \"jsonrpc\"\nmethods = {{ \"*\" = \"c\" }}\n"
    )
}

/// The one problem of `good(more)`.
fn problem_of(more: &str) -> String {
    let problems = problems(&good(more));
    assert_eq!(problems.len(), 1, "{more}: {problems:#?}");
    problems.into_iter().next().unwrap_or_default()
}

/// The one problem of an upstream `x` with these keys.
fn problem_of_upstream(keys: &str) -> String {
    problem_of(&format!("[upstreams.x]\n{keys}\n[[routes]]\npath = \"/x\"\nupstreams = [\"x\"]"))
}

#[test]
fn every_kind_of_value_is_read() {
    let read = config(&good(
        "[server]\nlisten = [\"127.0.0.1:1\", \"[::1]:2\"]\nmax_body = \"1MiB\"\nmax_header = 16384\n\
         drain_timeout = \"1m 30s\"\nmax_depth = 0x10\n[telemetry]\nlog = \"json\"\n\
         [upstreams.d]\ncommand = [\"d\"]\nenv = { T = \"${TOKEN}\" }\nrevision = \"2025-06-18\"\n\
         tools = { timeout = { \"slow_*\" = \"5m\" }, rename = { q = \"query\" } }\n\
         [[routes]]\npath = \"/d\"\nupstreams = [\"d\"]\nnames = \"prefix\"\nbatches = false",
    ));
    assert_eq!(read.server.listen.0.len(), 2);
    assert_eq!((read.server.max_body, read.server.max_header), (1 << 20, 16 << 10));
    assert_eq!((read.server.drain_timeout, read.server.max_depth), (Duration::from_secs(90), 16));
    assert_eq!(read.telemetry.log, LogFormat::Json);
    let d = &read.upstreams["d"];
    assert_eq!(d.env["T"].expose(), "s3cret");
    assert_eq!(d.tools.timeout["slow_*"], Duration::from_secs(300));
    assert_eq!(d.isolation(), Isolation::Shared);
    assert_eq!(read.upstreams["b"].isolation(), Isolation::Principal);
    assert_eq!((read.routes[0].names, read.routes[0].batches), (Names::Prefix, false));
    assert_eq!(read.routes[1].upstreams.len(), 2);
}

#[test]
fn an_empty_file_is_the_default() {
    assert_eq!(config(""), Config::default());
    assert!(warnings("")[0].contains("nothing is served"));
}

#[test]
fn unknown_keys_name_line_key_and_the_nearest_one() {
    assert_eq!(
        problem_of("[server]\nmax_bodyy = 1"),
        "2:1: unknown key `max_bodyy` in [server]; did you mean `max_body`?"
    );
    assert_eq!(problem_of("[sever]"), "1:2: unknown key `sever`; did you mean `server`?");
    assert_eq!(
        problem_of("[upstreams.a.tools]\ndenny = []"),
        "2:1: unknown key `denny` in [upstreams.a.tools]; did you mean `deny`?"
    );
    assert_eq!(
        problem_of("[admin]\nport = 1"),
        "2:1: unknown key `port` in [admin]; known keys: `listen`"
    );
    let text = "[[routes]]\npath = \"/\"\n\n[[routes]]\npath = \"/x\"\nupstream = []";
    assert_eq!(
        problems(text)[1..],
        ["6:1: unknown key `upstream` in [[routes]]; did you mean `upstreams`?"]
    );
}

#[test]
fn wrong_values_name_line_key_and_what_is_expected() {
    let cases = [
        (
            "max_batch = \"x\"",
            "13: `max_batch` in [server] must be a whole number, not the text \"x\"",
        ),
        ("max_batch = -1", "13: `max_batch` in [server] must be a whole number, not -1"),
        (
            "max_depth = 70000",
            "13: `max_depth` in [server] must be a whole number up to 65535, not 70000",
        ),
        (
            "listen = \"localhost:1\"",
            "10: `listen` in [server]: `localhost:1` is not IP:PORT, such as \"127.0.0.1:8808\", nor \"unix:/path\"",
        ),
        (
            "max_body = \"4 bananas\"",
            "12: `max_body` in [server]: `4 bananas` is not a size such as \"4MiB\"",
        ),
        (
            "keep_alive = 30",
            "14: `keep_alive` in [server] must be a duration such as \"30s\", not 30",
        ),
    ];
    for (line, right) in cases {
        assert_eq!(problem_of(&format!("[server]\n{line}")), format!("2:{right}"));
    }
    assert_eq!(
        problem_of_upstream("command = [\"x\"]\nprotocol = \"mpc\""),
        "3:12: `protocol` in [upstreams.x] must be `mcp` or `jsonrpc`, not `mpc`; did you mean `mcp`?"
    );
    assert_eq!(
        problems("[[routes]]\nnames = \"plain\"")[0],
        "1:1: [[routes]] needs the key `path`"
    );
}

#[test]
fn every_problem_is_found_at_once_in_the_order_of_the_file() {
    let found = problems(
        "[server]\nmax_batch = 0\nmax_bodyy = 1\nkeep_alive = \"x\"\n[upstreams.a]\nurl = \"${ABSENT}\"\n\
         [[routes]]\npath = \"/mcp\"\nupstreams = [\"a\", \"nope\"]\n",
    );
    let lines: Vec<_> =
        found.iter().map(|text| text.split(':').next().unwrap_or_default()).collect();
    assert_eq!(lines, ["2", "3", "4", "6", "9"], "{found:#?}");
}

#[test]
fn text_that_is_no_toml_is_reported_with_its_line() {
    assert_eq!(problems("[server\n")[0], "1:8: not valid TOML: unclosed table, expected `]`");
    let twice = problems("[server]\nmax_batch = 1\nmax_batch = 2\n");
    assert_eq!(twice, ["3:1: not valid TOML near `max_batch`: duplicate key"]);
}

#[test]
fn a_missing_variable_is_named_with_key_line_and_remedy() {
    assert_eq!(
        problem_of_upstream("command = [\"x\"]\n\n[upstreams.x.env]\nKEY = \"a ${ABSENT} b\""),
        "5:7: environment variable `ABSENT` is not set, but `KEY` in [upstreams.x.env] needs it; \
         set it, or write a default: `${ABSENT:-…}`"
    );
}

#[test]
fn a_variable_cannot_add_keys_and_does_not_move_lines() {
    let text =
        "[upstreams.a]\ncommand = [\"x\"]\nenv = { V = \"${INJECT}\" }\n[server]\nnope = 1\n";
    assert_eq!(problems(text)[0].split(':').next(), Some("5"));
    let text = text.replace("nope", "max_batch");
    assert_eq!(config(&text).server.max_batch, 1);
    assert!(config(&text).upstreams["a"].env["V"].expose().contains("max_batch"));
}

#[test]
fn references_must_lead_somewhere_of_the_right_kind() {
    let route = |keys: &str| problem_of(&format!("[[routes]]\npath = \"/x\"\n{keys}"));
    assert_eq!(
        route("upstreams = [\"a\", \"bb\"]"),
        "3:19: route `/x` names upstream `bb`, which does not exist; did you mean `b`?"
    );
    assert_eq!(
        route("protocol = \"jsonrpc\"\nmethods = { \"eth_*\" = \"nodes\" }"),
        "4:13: route `/x` names upstream `nodes`, which does not exist; upstreams: `a`, `b`, `c`"
    );
    assert!(
        route("upstreams = [\"c\"]")
            .starts_with("3:14: route `/x` speaks mcp, but upstream `c` speaks jsonrpc; set")
    );
    assert!(
        route("protocol = \"jsonrpc\"\nmethods = { x = \"a\" }")
            .contains("upstream `a` speaks mcp")
    );
    assert!(route("").contains("route `/x` has no upstreams"));
    assert!(route("protocol = \"jsonrpc\"").contains("route `/x` has no methods"));
    assert!(route("methods = { x = \"a\" }").contains("not by `methods`"));
    assert!(route("protocol = \"jsonrpc\"\nupstreams = [\"a\"]").contains("not by `upstreams`"));
    assert!(route("upstreams = [\"a\", \"a\"]").contains("names upstream `a` twice"));
    assert!(route("protocol = \"jsonrpc\"\nmethods = { \"x[\" = \"c\" }").contains("bad pattern"));
}

#[test]
fn a_broken_upstream_does_not_also_break_its_routes() {
    let text = "[upstreams.x]\nprotocol = \"jsonrcp\"\nurl = \"http://x\"\n\
                [[routes]]\npath = \"/x\"\nprotocol = \"jsonrpc\"\nmethods = { \"*\" = \"x\" }\n";
    assert_eq!(problems(text).len(), 1);
    assert_eq!(problems(&text.replace("jsonrcp", "jsonrpc").replace("url", "urll")).len(), 1);
}

#[test]
fn two_routes_cannot_share_a_path() {
    let route =
        |path: &str| problem_of(&format!("[[routes]]\npath = \"{path}\"\nupstreams = [\"a\"]"));
    assert_eq!(
        route("/mcp"),
        "12:1: path `/mcp` is already that of the route in line 2; give each its own"
    );
    assert!(route("/mcp/sse").contains("where route `/mcp` serves older clients"));
    assert!(route("/mcp/message").contains("where route `/mcp` serves older clients"));
}

#[test]
fn upstreams_that_cannot_be_reached_are_refused() {
    let cases = [
        ("timeout = \"1s\"", "1:12: upstream `x` has neither `command` nor `url`"),
        ("command = []", "`command` in [upstreams.x] is empty"),
        ("command = [\"\"]", "`command` in [upstreams.x] is empty"),
        ("url = \"ws://x/\"\nconnections = 0", "must be at least 1"),
        ("url = \"wss://x/\"\nsubprotocol = \"a b\"", "no name of a subprotocol"),
        ("url = \"ws://x/\"\nping_timeout = \"0s\"", "longer than nothing"),
        ("url = \"unix:/run/x.sock:mcp\"", "must begin with `/`"),
        (
            "url = \"http://unix:/run/x.sock:/mcp\"",
            "write a unix socket as `unix:/run/x.sock:/mcp`",
        ),
        (
            "url = \"https://x/mcp\"\ntls = { cert = \"x.pem\" }",
            "`cert` in [upstreams.x.tls] needs `key`",
        ),
        ("url = \"https://x/mcp\"\ntls = { server_name = \"a b\" }", "no host name"),
        ("url = \"https://x/mcp\"\ntls = { caa = \"x.pem\" }", "did you mean `ca`?"),
        ("url = \"ftp://x/mcp\"", "must begin with `http:`"),
        ("url = \"x\"", "not a URL such as"),
        ("url = \"http://me:pw@x/\"", "holds a user or password"),
        ("url = \"http://x/#a\"", "holds a `#…`"),
        ("url = \"http://x:0/\"", "has port 0"),
        ("url = \"http://127.0.0.1:8808/mcp\"", "is a route of this gateway"),
        ("url = \"http://127.0.0.1:8808/mcp/sse\"", "is a route of this gateway"),
        ("url = \"http://localhost:8808/x\"", "is a route of this gateway"),
        ("command = [\"x\"]\nuri_schemes = [\"file:\"]", "holds `file:`, which is no scheme"),
        ("command = [\"x\"]\nrevision = \"1\"", "`1` is not one of `auto`, `2024-11-05`"),
        ("command = [\"x\"]\nenv = { \"A=B\" = \"\" }", "names `A=B`"),
        ("command = [\"x\"]\nenv_inherit = [\"\"]", "no variable can be named"),
        ("command = [\"x\\u0000\"]", "zero character"),
    ];
    for (keys, right) in cases {
        let problem = problem_of_upstream(keys);
        assert!(problem.contains(right), "{keys}: {problem}");
    }
    let plain = "[upstreams.x]\nprotocol = \"jsonrpc\"\ncommand = [\"x\"]\n";
    assert!(problem_of(plain).contains("needs a `url`"));
}

#[test]
fn headers_that_cannot_be_sent_are_refused_without_showing_them() {
    let header =
        |entry: &str| problem_of_upstream(&format!("url = \"http://x\"\nheaders = {{ {entry} }}"));
    assert!(header("\"a b\" = \"1\"").contains("is no name of a header"));
    let value = header("A = \"s3cret\\nB: 1\"");
    assert!(value.contains("line breaks") && !value.contains("s3cret"), "{value}");
    assert!(header("Content-Length = \"1\"").contains("the gateway sets itself"));
    assert!(header("A = \"1\", a = \"2\"").contains("is given twice"));
}

#[test]
fn limits_that_would_stop_everything_are_refused() {
    for key in [
        "max_body",
        "max_batch",
        "max_batch_answer",
        "max_bytes_in_flight",
        "batch_concurrency",
        "max_connections",
        "max_sessions",
        "max_header",
        "max_depth",
        "workers",
    ] {
        let problem = problem_of(&format!("[server]\n{key} = 0"));
        assert!(problem.starts_with(&format!("2:1: `{key}` in [server] must be")), "{problem}");
    }
    for key in [
        "header_timeout",
        "body_timeout",
        "write_timeout",
        "batch_timeout",
        "keep_alive",
        "session_idle_timeout",
        "park_timeout",
    ] {
        assert!(problem_of(&format!("[server]\n{key} = \"0s\"")).contains("longer than nothing"));
    }
    for key in [
        "timeout",
        "max_timeout",
        "connect_timeout",
        "first_byte_timeout",
        "start_timeout",
        "probe_timeout",
        "list_timeout",
        "idle_timeout",
    ] {
        let text = good("").replace("[upstreams.b]", &format!("[upstreams.b]\n{key} = \"0s\""));
        assert!(problems(&text)[0].contains("longer than nothing"), "{key}");
    }
    assert!(problem_of_upstream("command = [\"x\"]\nmax_concurrency = 0").contains("at least 1"));
    assert!(problem_of_upstream("command = [\"x\"]\nmax_message = 0").contains("at least 1"));
    assert!(
        problem_of_upstream("command = [\"x\"]\nmax_timeout = \"1s\"")
            .contains("shorter than `timeout`")
    );
    assert!(
        problem_of_upstream("command = [\"x\"]\ntimeout = \"20m\"").starts_with("3:1: `timeout`")
    );
}

#[test]
fn choices_of_tools_are_checked() {
    let tools = |keys: &str| {
        problem_of_upstream(&format!("command = [\"x\"]\n[upstreams.x.tools]\n{keys}"))
    };
    assert!(tools("allow = [\"a[\"]").contains("bad pattern"));
    assert!(tools("deny = [\"\"]").contains("empty pattern"));
    assert!(tools("timeout = { \"*\" = \"20m\" }").contains("longer than `max_timeout`"));
    assert!(tools("timeout = { \"*\" = \"0s\" }").contains("longer than nothing"));
    assert!(tools("rename = { a = \"b c\" }").contains("no name of a tool"));
    assert!(tools("rename = { a = \"x\", b = \"x\" }").contains("becomes `x`, as `a` does"));
}

#[test]
fn listening_beyond_loopback_must_be_meant() {
    let open = "[server]\nlisten = [\"127.0.0.1:1\", \"0.0.0.0:8808\"]\n";
    assert_eq!(
        problem_of(open),
        "2:1: `0.0.0.0:8808` can be reached from other machines, and nothing asks who calls; \
         listen on 127.0.0.1, or set `allow_unauthenticated = true` in [server]"
    );
    assert!(problems(&good(&format!("{open}allow_unauthenticated = true"))).is_empty());
    let admin = warnings(&good("[admin]\nlisten = \"0.0.0.0:9808\""));
    assert!(admin[0].starts_with("2:1: the admin address `0.0.0.0:9808`"));
}

#[test]
fn addresses_hosts_and_origins_are_checked() {
    assert!(problem_of("[server]\nlisten = []").contains("empty list"));
    assert!(problem_of("[server]\nlisten = [\"127.0.0.1:1\", \"127.0.0.1:1\"]").contains("twice"));
    assert!(problem_of("[server]\nlisten = \"127.0.0.1:9808\"").contains("give [admin] a port"));
    let free = "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"";
    assert!(problems(&good(free)).is_empty());
    assert!(problem_of("[server]\nallowed_hosts = [\"http://x/\"]").contains("is no host"));
    assert!(problem_of("[server]\nallowed_origins = [\"x\"]").contains("is no origin"));
    assert!(
        problem_of("[server]\nallowed_origins = [\"https://X.example/\"]")
            .contains("write it as browsers do: `https://x.example`")
    );
    let public = |url: &str| format!("[server]\npublic_url = \"{url}\"");
    assert!(problem_of(&public("ws://x/")).contains("must begin with `http:` or `https:`"));
    for odd in ["https://u:p@x/", "https://x/?a=b", "https://x/#a"] {
        assert!(problem_of(&public(odd)).contains("no more than scheme, host and path"), "{odd}");
    }
    assert!(problems(&good(&public("https://x.example/tools"))).is_empty());
    let fine = "[server]\nallowed_hosts = [\"a.example\", \"b:1\", \"[::1]:2\"]\nallowed_origins = [\"*\", \"https://a.example:8443\"]";
    assert!(problems(&good(fine)).is_empty());
    assert!(problem_of("[telemetry]\nlevel = \"a=b=c\"").contains("is not a filter"));
    assert!(problem_of("[store]\nsecret = \"\"").contains("is empty"));
}

#[test]
fn what_is_odd_is_a_warning() {
    assert!(warnings(&good("")).is_empty(), "{:?}", warnings(&good("")));
    let cases = [
        ("[upstreams.u]\nurl = \"http://u\"", "1:12: no route names upstream `u`"),
        ("[store]\nsecret = \"short\"", "2:1: `secret` in [store] is short"),
        (
            "[upstreams.a__x]\ncommand = [\"x\"]",
            "1:12: the names of upstream `a__x` can be mistaken for those of `a`",
        ),
        ("[upstreams.z__x]\ncommand = [\"x\"]", "upstream name `z__x` holds `__`"),
        (
            "[upstreams.u]\nurl = \"http://u\"\ncwd = \"/\"",
            "`cwd` in [upstreams.u] is for children",
        ),
        (
            "[upstreams.u]\ncommand = [\"u\"]\nheaders = { A = \"1\" }",
            "`headers` in [upstreams.u] is for HTTP",
        ),
        (
            "[upstreams.u]\ncommand = [\"u\"]\nbatch = true",
            "`batch` in [upstreams.u] is for `protocol = \"jsonrpc\"`",
        ),
        (
            "[[routes]]\npath = \"/r\"\nprotocol = \"jsonrpc\"\nmethods = { x = \"c\" }\nnames = \"auto\"",
            "5:1: `names` of route `/r` has no effect",
        ),
    ];
    for (more, right) in cases {
        let found = warnings(&good(more));
        assert!(found.iter().any(|text| text.contains(right)), "{more}: {found:#?}");
    }
}

#[test]
fn secrets_never_show() {
    let read = config(&good("[store]\nsecret = \"0123456789abcdef-secret\""));
    assert!(!format!("{read:?}").contains("abcdef"));
    assert!(!serde_json::to_string(&read).unwrap().contains("abcdef"));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = load(std::path::Path::new("/nowhere/t.toml"), &env).unwrap_err();
    assert_eq!(error.to_string(), "cannot read /nowhere/t.toml");
}

/// Lines of the example file, some of them left out, doubled, or cut.
fn mangled() -> impl proptest::strategy::Strategy<Value = String> {
    use proptest::prelude::*;
    let lines: Vec<&str> = include_str!("../../config.example.toml").lines().collect();
    let line = (0..lines.len(), 0..40_usize, 0..6_u8);
    proptest::collection::vec(line, 0..60).prop_map(move |picked| {
        let mut text = String::new();
        for (index, cut, what) in picked {
            let line = lines[index].trim_start_matches("# ");
            match what {
                0 => text.extend(line.chars().take(cut)),
                1 => text.extend(line.chars().rev().take(cut)),
                _ => text.push_str(line),
            }
            text.push('\n');
        }
        text
    })
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_or_refused_with_places_that_exist(text in mangled()) {
        if let Err(ConfigError::Invalid(problems)) = read(&text) {
            proptest::prop_assert!(!problems.is_empty());
            let lines = text.lines().count() + 1;
            for problem in problems.iter() {
                proptest::prop_assert!(problem.place.is_none_or(|place| place.line <= lines), "{problem}");
            }
        }
    }
}

/// A plain route with these lines.
fn plain_route(lines: &str) -> String {
    good(&format!("[[routes]]\npath = \"/x\"\nprotocol = \"jsonrpc\"\n{lines}\n"))
}

#[test]
fn a_pattern_leads_to_one_upstream_a_list_or_a_table() {
    let text = plain_route(
        "methods.one = \"c\"\nmethods.list = [\"c\"]\nmethods.many = [\"c\", \"d\"]\n\
         methods.table = { upstreams = [\"c\", \"d\"], balance = \"least_requests\", timeout = \"5s\", \
         max_body = \"64KiB\", idempotent = true }\nallow = [\"o*\"]\ndeny = [\"many\"]\n\
         [upstreams.d]\nprotocol = \"jsonrpc\"\nurl = \"http://d/\"",
    );
    let read = config(&text);
    let route = &read.routes[0];
    assert_eq!(route.methods["one"], route.methods["list"]);
    assert_eq!(route.methods["many"].upstreams.len(), 2);
    let table = &route.methods["table"];
    assert_eq!((table.balance(), table.idempotent), (Balance::LeastRequests, true));
    assert_eq!((table.timeout, table.max_body), (Some(Duration::from_secs(5)), Some(64 << 10)));
    assert_eq!((route.allow.len(), route.deny.len()), (1, 1));
    let again = serde_json::to_value(&route.methods).unwrap();
    let back: std::collections::BTreeMap<String, MethodConfig> =
        serde_json::from_value(again.clone()).unwrap();
    assert_eq!((&back, &again["one"]), (&route.methods, &serde_json::json!("c")));
}

#[test]
fn replicas_stand_instead_of_an_address_and_only_for_plain_services() {
    let upstream = |lines: &str| good(&format!("[upstreams.x]\n{lines}\n"));
    let plain = |lines: &str| upstream(&format!("protocol = \"jsonrpc\"\n{lines}"));
    let read = config(&plain("endpoints = [\"http://a/\", \"http://b/\"]\ntimeout = \"1s\""));
    let replicas = read.upstreams["x"].replicas();
    let urls: Vec<_> = replicas.iter().filter_map(|replica| replica.url.as_ref()).collect();
    assert_eq!(urls, [&"http://a/".parse().unwrap(), &"http://b/".parse().unwrap()]);
    assert!(replicas.iter().all(|replica| replica.timeout == Duration::from_secs(1)));
    assert_eq!(read.upstreams["c"].replicas(), [read.upstreams["c"].clone()]);
    for (text, right) in [
        (plain("url = \"http://a/\"\nendpoints = [\"http://b/\"]"), "stands beside `url`"),
        (plain("endpoints = [\"http://a/\", \"http://a/\"]"), "names one address twice"),
        (plain("endpoints = [\"ftp://a/\"]"), "begins with `ftp:`"),
        (plain("endpoints = [\"a\"]"), "not a URL"),
        (plain("endpoints = [\"http://u:p@a/\"]"), "holds a user or password"),
        (plain("endpoints = []"), "neither `command` nor `url`"),
        (upstream("endpoints = [\"http://a/\"]"), "sessions of MCP stay with one server"),
    ] {
        let problems = problems(&text);
        assert!(problems.iter().any(|text| text.contains(right)), "{right}: {problems:#?}");
    }
}

#[test]
fn a_pattern_that_leads_nowhere_or_makes_no_sense_is_refused() {
    for (line, right) in [
        ("methods.x = []", "4:9: `x` in [routes.methods] names no upstream"),
        ("methods.x = [\"c\", \"c\"]", "names upstream `c` twice"),
        (
            "methods.x = [\"c\", \"cc\"]",
            "names upstream `cc`, which does not exist; did you mean `c`?",
        ),
        ("methods.x = 5", "must be the name of an upstream, a list of names, or a table"),
        ("methods.x = { upstream = \"c\" }", "unknown key `upstream`"),
        ("methods.x = { timeout = \"5s\" }", "needs the key `upstreams`"),
        (
            "methods.x = { upstreams = [\"c\"], balance = \"random\" }",
            "`balance` in [routes.methods.x] must be `order`",
        ),
        ("methods.x = { upstreams = [\"c\"], timeout = \"0s\" }", "longer than nothing"),
        (
            "methods.x = { upstreams = [\"c\"], timeout = \"1h\" }",
            "longer than `max_timeout` of its upstreams",
        ),
        (
            "methods.x = { upstreams = [\"c\"], max_body = 0 }",
            "`max_body` in [routes.methods.x] must be at least 1",
        ),
        (
            "methods.x = { upstreams = [\"c\"], max_body = \"5MiB\" }",
            "is larger than `max_body` in [server], 4MiB",
        ),
        ("methods.x = \"c\"\ndeny = [\"a[\"]", "`deny` in [[routes]] holds a bad pattern"),
        ("methods.x = \"c\"\nallow = [\"\"]", "`allow` in [[routes]] holds an empty pattern"),
    ] {
        let problems = problems(&plain_route(line));
        assert!(problems.iter().any(|text| text.contains(right)), "{line}: {problems:#?}");
    }
    let warned = warnings(&plain_route("methods.x = { upstreams = [\"c\"], balance = \"order\" }"));
    assert!(warned.iter().any(|text| text.contains("has no effect on one upstream")), "{warned:?}");
}

#[test]
fn subscriptions_that_cannot_work_are_refused() {
    let route = |subscription: &str, more: &str| {
        plain_route(&format!(
            "methods = {{ \"eth_*\" = \"ws\", \"*\" = \"c\" }}\nsubscriptions.eth_s = {subscription}\n{more}\n\
             [upstreams.ws]\nprotocol = \"jsonrpc\"\nurl = \"ws://d/\""
        ))
    };
    let good = "{ notification = \"n\", unsubscribe = \"eth_u\", id = \"params.a.0\", gap = \"g\", share = true }";
    let read = config(&route(good, "max_subscriptions = 7"));
    let kind = &read.routes[0].subscriptions["eth_s"];
    assert_eq!((kind.share, kind.gap.as_deref(), &*kind.id), (true, Some("g"), "params.a.0"));
    assert_eq!(read.routes[0].max_subscriptions, 7);
    for (from, to, right) in [
        ("eth_u", "eth_s", "is ended by `eth_s`, which subscribes itself"),
        ("params.a.0", "subscription", "is no way into `params`; write it as"),
        ("\"n\"", "\"\"", "is empty; name a method"),
        ("share = true", "shared = true", "did you mean `share`"),
        ("id = \"params.a.0\", ", "", "needs the key `id`"),
    ] {
        let problems = problems(&route(&good.replace(from, to), ""));
        assert!(problems.iter().any(|text| text.contains(right)), "{to}: {problems:#?}");
    }
    let problems_of = |more: &str| problems(&route(good, more));
    let over_http = problems_of(
        "subscriptions.other = { notification = \"n\", unsubscribe = \"eth_u\", id = \"params.0\" }",
    );
    assert!(
        over_http[0].contains("not spoken to over WebSocket; give it a `ws:` url"),
        "{over_http:#?}"
    );
    assert!(problems_of("max_subscriptions = 0")[0].contains("must be at least 1"));
    let other = |methods: &str, more: &str| {
        let other = format!(
            "[[routes]]\npath = \"/y\"\nprotocol = \"jsonrpc\"\nmethods = {{ {methods} }}\n{more}"
        );
        problems_of(&other)
    };
    let stranger = other("\"eth_*\" = [\"c\", \"ws\"]", "");
    for (problem, method) in stranger.iter().zip(["eth_s", "eth_u"]) {
        let right = format!(
            "route `/y` hands `{method}` to upstream `ws` as any call, where it would reach what clients of route `/x` subscribed to; \
             name it in `subscriptions` of `/y`, or `deny = [\"{method}\"]` there"
        );
        assert!(problem.contains(&right), "{stranger:#?}");
    }
    assert_eq!(stranger.len(), 2);
    for (methods, more) in [
        ("\"eth_*\" = \"ws\"", "deny = [\"eth_[su]\"]"),
        ("\"eth_*\" = \"ws\"", "allow = [\"eth_call\"]"),
        ("eth_u = \"c\", eth_s = \"c\", \"eth_*\" = \"ws\"", ""),
        ("\"*\" = \"ws\"", &*format!("subscriptions.eth_s = {good}")),
    ] {
        let found = other(methods, more);
        assert!(found.is_empty(), "{methods} {more}: {found:#?}");
    }
}
