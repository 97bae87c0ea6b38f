//! Reads the text of `/metrics`.

/// One scrape.
#[derive(Clone, Debug)]
pub struct Metrics {
    samples: Vec<Sample>,
}

#[derive(Clone, Debug)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Metrics {
    /// Parses the Prometheus text format.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        Self { samples: lines.map(Sample::parse).collect() }
    }

    /// The sum of the samples of that name which carry at least these labels; 0 if there are none.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.find(name, labels).map(|sample| sample.value).sum()
    }

    /// Whether there is a sample of that name with these labels. Histograms go by their name.
    pub fn has(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        self.find(name, labels).next().is_some()
            || self.find(&format!("{name}_count"), labels).next().is_some()
    }

    /// The values of one label of that metric.
    pub fn labels(&self, name: &str, label: &str) -> Vec<String> {
        let all = self.find(name, &[]).flat_map(|sample| &sample.labels);
        all.filter(|(key, _)| key == label).map(|(_, value)| value.clone()).collect()
    }

    /// How many series there are.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    fn find<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&str, &str)],
    ) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| {
            sample.name == name
                && labels
                    .iter()
                    .all(|(k, v)| sample.labels.iter().any(|(name, value)| name == k && value == v))
        })
    }
}

impl Sample {
    fn parse(line: &str) -> Self {
        let (head, value) = line.rsplit_once(' ').expect("a sample has a value");
        let (name, labels) = head.split_once('{').unwrap_or((head, "}"));
        let labels = labels.trim_end_matches('}').split(',').filter(|text| !text.is_empty());
        let labels = labels
            .filter_map(|text| text.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.trim_matches('"').to_owned()));
        Self {
            name: name.to_owned(),
            labels: labels.collect(),
            value: value.parse().expect("a sample's value is a number"),
        }
    }
}
