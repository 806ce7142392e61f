//! A curve in a terminal: one bar a point, so that it also reads well in a log.

const WIDTH: usize = 50;
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// One bar for a share between 0 and 1, `WIDTH` cells long at 1.
fn bar(share: f64) -> String {
    let eighths = (share.clamp(0.0, 1.0) * (WIDTH * 8) as f64).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

/// A line for each point: its name, its bar, its value in per cent.
pub fn draw(points: &[(String, f64)]) -> String {
    let names = points.iter().map(|(n, _)| n.chars().count()).max().unwrap_or(0);
    points
        .iter()
        .map(|(name, share)| format!("  {name:>names$} │{:<WIDTH$}│ {:5.1} %\n", bar(*share), share * 100.0))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_share() {
        assert_eq!(bar(0.0), "");
        assert_eq!(bar(1.0), "█".repeat(50));
        assert_eq!(bar(0.5), "█".repeat(25));
        assert_eq!(bar(0.01), "▌");
    }

    #[test]
    fn lines_are_aligned_whatever_the_share() {
        let drawn = draw(&[("1".into(), 0.1), ("10".into(), 1.0)]);
        let lengths: Vec<usize> = drawn.lines().map(|l| l.chars().count()).collect();
        assert_eq!(lengths[0], lengths[1]);
    }
}
