//! Which answers are retried, and after how long, by their headers (`huggingface_hub/utils/_http.py`).

use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};

/// Consecutive attempts without progress.
pub(crate) const ATTEMPTS: u32 = 12;
/// Maximum wait that a server may ask for.
const LONGEST: Duration = Duration::from_secs(300);

pub(crate) fn is_transient(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..=599)
}

/// The pause before attempt `failed + 1`: 1, 2, 4, 8, 16, 30 and 30 s, or as long as the server asks for.
pub(crate) fn pause(failed: u32, asked: Option<Duration>) -> Duration {
    let doubled = Duration::from_secs((1 << failed.saturating_sub(1).min(5)).min(30));
    asked.map_or(doubled, |asked| asked.min(LONGEST))
}

/// `Retry-After: 7`, or the hub's own `ratelimit: "api";r=0;t=55`: no requests left, and seconds until the next.
pub(crate) fn asked_for(headers: &HeaderMap) -> Option<Duration> {
    if let Some(limit) = text(headers, "ratelimit") {
        let field = |name: &str| {
            let mut fields = limit.split(';').filter_map(|field| field.trim().split_once('='));
            fields
                .find(|(key, _)| *key == name)
                .and_then(|(_, value)| value.parse::<u64>().ok())
        };
        if let (Some(0), Some(seconds)) = (field("r"), field("t")) {
            return Some(Duration::from_secs(seconds.saturating_add(1)));
        }
    }
    let seconds = text(headers, RETRY_AFTER.as_str())?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// A header's value, if it is text.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())])
    }

    #[test]
    fn pauses_double_unless_the_server_asks_for_another() {
        let doubled: Vec<u64> = (1..=6).map(|failed| pause(failed, None).as_secs()).collect();
        assert_eq!(doubled, [1, 2, 4, 8, 16, 30]);
        let cases = [
            ("retry-after", "7", 7),
            ("retry-after", "100000", 300),
            ("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT", 1),
            ("ratelimit", "\"api\";r=0;t=55", 56),
            ("ratelimit", "\"api\";r=3;t=55", 1),
        ];
        for (name, value, seconds) in cases {
            assert_eq!(
                pause(1, asked_for(&headers(name, value))).as_secs(),
                seconds,
                "{name}: {value}"
            );
        }
    }
}
