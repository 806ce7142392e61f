//! Kubernetes quantities as whole thousandths: `250m` is 250, `2` is 2,000, `1Gi` is 1,073,741,824,000.
//!
//! Precise enough to add up requests of pods and capacities of nodes. Finer amounts are rounded up to a thousandth, as
//! the scheduler does.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

const BINARY: [(&str, i128); 6] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
];
const DECIMAL: [(&str, i32); 9] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

/// A quantity in thousandths. `None` if it is not a quantity; the API server accepts only quantities.
pub fn thousandths(quantity: &Quantity) -> Option<i64> {
    let text = quantity.0.as_str();
    if let Some((number, factor)) = BINARY
        .iter()
        .find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)))
    {
        return scaled(number, factor, 0);
    }
    if let Some((number, power)) = DECIMAL
        .iter()
        .find_map(|(suffix, power)| Some((text.strip_suffix(suffix)?, *power)))
    {
        return scaled(number, 1, power);
    }
    match text.split_once(['e', 'E']) {
        Some((number, power)) => scaled(number, 1, power.parse().ok()?),
        None => scaled(text, 1, 0),
    }
}

/// `number` x `factor` x 10^`power`, in thousandths.
fn scaled(number: &str, factor: i128, power: i32) -> Option<i64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    let digits: i128 = digits.parse().ok()?;
    let power = power + 3 - i32::try_from(fraction.len()).ok()?;
    let ten = |power: i32| 10i128.checked_pow(power.unsigned_abs());
    let product = digits.checked_mul(factor)?;
    let value = if power >= 0 {
        product.checked_mul(ten(power)?)?
    } else {
        let divisor = ten(power)?;
        product.div_euclid(divisor) + i128::from(product.rem_euclid(divisor) > 0)
    };
    i64::try_from(value).ok()
}

/// Formats an amount for people: whole numbers without a fraction, large memory in Gi.
pub fn in_words(resource: &str, thousandths: i64) -> String {
    let whole = thousandths / 1000;
    match resource {
        "memory" | "ephemeral-storage" if whole >= 1 << 30 => format!("{:.0}Gi", whole as f64 / f64::from(1 << 30)),
        "memory" | "ephemeral-storage" => format!("{}Mi", whole >> 20),
        _ if thousandths % 1000 == 0 => whole.to_string(),
        _ => format!("{thousandths}m"),
    }
}

#[cfg(test)]
mod tests;
