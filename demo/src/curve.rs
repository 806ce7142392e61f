//! A curve in a terminal, with one bar per point, so that it is also readable in a log.

const WIDTH: usize = 50;
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// One bar for a share between 0 and 1, `WIDTH` cells long at 1.
fn bar(share: f64) -> String {
    let eighths = (share.clamp(0.0, 1.0) * (WIDTH * 8) as f64).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

/// One line per point: its name, its bar, its value in per cent.
pub fn draw(points: &[(String, f64)]) -> String {
    let names = points.iter().map(|(n, _)| n.chars().count()).max().unwrap_or(0);
    points
        .iter()
        .map(|(name, share)| format!("  {name:>names$} │{:<WIDTH$}│ {:5.1} %\n", bar(*share), share * 100.0))
        .collect()
}

#[cfg(test)]
mod tests;
