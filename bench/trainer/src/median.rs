//! The median of measured numbers.

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => f64::NAN,
        _ => (values[n / 2] + values[(n - 1) / 2]) / 2.0,
    }
}
