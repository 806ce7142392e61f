//! The rotation speeds of a head's pairs of dimensions: rotary embedding (Su et al., arXiv 2104.09864), extended by
//! YaRN ([`crate::yarn`]) if a config requires it. Plain numbers, from which training and decoding build their tables.

use crate::config::Config;

/// Radians per position of each pair, `[head_dim / 2]`, and the factor of cosines and sines.
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
