//! How fast each pair of a head's dimensions turns with the position: rotary embedding (Su et al., arXiv 2104.09864),
//! stretched by YaRN ([`crate::yarn`]) where a config asks for it. Plain numbers, from which training and
//! decoding make their tables.

use crate::config::Config;

/// Radians per position of each pair, `[head_dim / 2]`, and what cosines and sines are multiplied by.
pub fn frequencies(config: &Config) -> (Vec<f64>, f64) {
    let dim = config.head_dim() as f64;
    let own = (0..config.head_dim() / 2).map(|i| (-(2.0 * i as f64 / dim) * config.rope_theta.ln()).exp());
    match &config.yarn {
        None => (own.collect(), 1.0),
        Some(yarn) => {
            let mixed = own
                .zip(yarn.kept(config.head_dim(), config.rope_theta))
                .map(|(speed, kept)| speed * kept + speed / yarn.factor * (1.0 - kept));
            (mixed.collect(), yarn.attention_factor)
        }
    }
}
