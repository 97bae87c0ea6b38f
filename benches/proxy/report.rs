//! Figures to a Markdown table: medians with ranges, always beside what they are compared with.

use crate::fanout::FanOut;
use crate::load::Window;
use crate::memory::Growth;
use crate::scenario::Target;

/// What one target did in one round.
#[derive(Clone, Copy)]
struct Figures {
    rate: f64,
    p50: f64,
    p99: f64,
    cpu: f64,
}

impl Figures {
    fn of(window: &Window) -> Self {
        let requests = window.latency.total().max(1) as f64;
        Self {
            rate: requests / window.took.as_secs_f64(),
            p50: window.latency.quantile(0.5),
            p99: window.latency.quantile(0.99),
            cpu: window.cpu.as_secs_f64() * 1e6 / requests,
        }
    }
}

/// The rounds of one scenario.
pub(crate) struct Rows {
    about: &'static str,
    /// For each round, the targets in the order they were measured.
    rounds: Vec<Vec<(Target, Figures)>>,
}

impl Rows {
    /// No rounds yet.
    pub(crate) fn new(about: &'static str) -> Self {
        Self { about, rounds: Vec::new() }
    }

    /// Takes the windows of one round.
    pub(crate) fn add(&mut self, round: &[(Target, Window)]) {
        self.rounds.push(round.iter().map(|(target, w)| (*target, Figures::of(w))).collect());
    }

    /// A column over all rounds: `f` of the target's figures and those of another in that round.
    fn column(&self, of: Target, with: Target, f: fn(Figures, Figures) -> f64) -> Vec<f64> {
        let find = |round: &[(Target, Figures)], wanted: Target| {
            round.iter().find(|(target, _)| *target == wanted).map(|(_, figures)| *figures)
        };
        self.rounds
            .iter()
            .filter_map(|round| Some(f(find(round, of)?, find(round, with)?)))
            .collect()
    }

    /// The lines of the table.
    fn print(&self) {
        use Target::{Direct, Gateway, Passthrough};
        let p50 = self.column(Direct, Direct, |direct, _| direct.p50);
        let p99 = self.column(Direct, Direct, |direct, _| direct.p99);
        println!(
            "| {} | direct | 1 | ({}) | ({}) | – | – |",
            self.about,
            show(&p50, 0),
            show(&p99, 0)
        );
        for target in [Passthrough, Gateway] {
            let rate = self.column(target, Direct, |target, direct| target.rate / direct.rate);
            if rate.is_empty() {
                continue;
            }
            let p50 = self.column(target, Direct, |target, direct| target.p50 - direct.p50);
            let p99 = self.column(target, Direct, |target, direct| target.p99 - direct.p99);
            let cpu = self.column(target, target, |target, _| target.cpu);
            let ratio =
                self.column(target, Passthrough, |target, control| target.cpu / control.cpu);
            let ratio = if target == Gateway { show(&ratio, 2) } else { "1".to_owned() };
            println!(
                "| | {} | {} | {} | {} | {} | {} |",
                target.name(),
                show(&rate, 2),
                show(&p50, 0),
                show(&p99, 0),
                show(&cpu, 1),
                ratio
            );
        }
    }
}

/// Prints the table of all scenarios.
pub(crate) fn print_load(rows: &[Rows]) {
    if rows.is_empty() {
        return;
    }
    println!(
        "| load | target | req/s ÷ direct | p50 added µs | p99 added µs | CPU µs/request | CPU ÷ passthrough |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    rows.iter().for_each(Rows::print);
    println!();
}

/// Prints resident memory before and after the load.
pub(crate) fn print_memory(load: &[(Target, u64, u64)]) {
    if load.is_empty() {
        return;
    }
    println!("| RSS, MiB | idle | after the load |\n| --- | --- | --- |");
    for (target, idle, after) in load {
        println!("| {} | {:.1} | {:.1} |", target.name(), mib(*idle), mib(*after));
    }
    println!();
}

/// Prints what idle clients cost.
pub(crate) fn print_growth(growths: &[Growth]) {
    if growths.is_empty() {
        return;
    }
    println!(
        "| clients of the gateway | RSS, MiB, without and with so many | KiB each, over all | between the last two | all told of a change after |"
    );
    println!("| --- | --- | --- | --- | --- |");
    for growth in growths {
        let mut sizes = format!("0: {:.1}", mib(growth.idle));
        for (count, bytes) in &growth.steps {
            sizes += &format!(", {count}: {:.1}", mib(*bytes));
        }
        let mut told = "–".to_owned();
        if let Some((took, bytes)) = growth.told {
            sizes += &format!(", then {:.1}", mib(bytes));
            told = format!("{} ms", took.as_millis());
        }
        let (overall, slope) = growth.per_client().unwrap_or_default();
        let (overall, slope) = (overall / 1024.0, slope / 1024.0);
        println!("| {} | {sizes} | {overall:.1} | {slope:.1} | {told} |", growth.about);
    }
}

/// Prints what telling many clients of one event costs.
pub(crate) fn print_fan_out(fan_out: Option<&FanOut>) {
    let Some(FanOut { clients, cpu, took }) = fan_out else { return };
    let millis: Vec<f64> = took.iter().map(|took| took.as_secs_f64() * 1000.0).collect();
    println!(
        "\n| notification to | CPU µs for each client | all told after, ms |\n| --- | --- | --- |"
    );
    let micros = cpu.as_secs_f64() * 1e6;
    println!("| {clients} WebSocket clients | {micros:.2} | {} |", show(&millis, 1));
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

/// Median and range.
fn show(values: &[f64], decimals: usize) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (Some(low), Some(high)) = (sorted.first(), sorted.last()) else { return "–".to_owned() };
    let middle = sorted.len() / 2;
    let median = if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    };
    format!("{median:.decimals$} [{low:.decimals$}, {high:.decimals$}]")
}
