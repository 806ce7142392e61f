//! The arithmetic of decoding. Its main property: the bits of a result never depend on other rows that are computed in
//! the same pass.
//!
//! Every output element is a separate chain of fused multiply-adds, in ascending order of the summed index, for any
//! number of rows that share a pass. So a row gives the same bits alone or among a hundred others, in one chunk or
//! token by token, on one thread or many. Matrix products of libraries do not guarantee this: they choose their kernel,
//! and so the order of summation, by the shape of the whole batch. Vectors run across outputs, never along a sum, so
//! this costs nothing.
//!
//! The functions are inlined into one body, which is compiled for the best instruction set found at run time (see
//! [`super::Decoder::forward`]). Fused multiply-add is exact, so the instruction set does not change the bits either.

/// Outputs computed side by side: the number of columns of a panel, and of positions of a cache block.
pub const LANES: usize = 16;

/// Rows that share one pass over a panel: 6 x 16 sums fill the registers.
const ROWS: usize = 6;

/// A weight matrix `[outputs, inputs]`, stored as panels of [`LANES`] outputs with the inputs ascending inside.
pub struct Panels {
    outputs: usize,
    inputs: usize,
    data: Vec<f32>,
}

impl Panels {
    /// Packs the rows of one or more matrices of the same width, one after the other.
    pub fn pack(matrices: &[&[f32]], inputs: usize) -> Self {
        let outputs = matrices.iter().map(|matrix| matrix.len() / inputs).sum::<usize>();
        let mut data = vec![0.0; outputs.div_ceil(LANES) * LANES * inputs];
        let rows = matrices.iter().flat_map(|matrix| matrix.chunks_exact(inputs));
        for (output, row) in rows.enumerate() {
            let panel = &mut data[output / LANES * LANES * inputs..][..LANES * inputs];
            for (input, value) in row.iter().enumerate() {
                panel[input * LANES + output % LANES] = *value;
            }
        }
        Self { outputs, inputs, data }
    }

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// `out[t] = W x[t]` for every row t.
    #[inline(always)]
    pub fn apply(&self, x: &[f32], out: &mut [f32]) {
        let rows = x.len() / self.inputs;
        for (index, panel) in self.data.chunks_exact(LANES * self.inputs).enumerate() {
            let mut row = 0;
            while row + ROWS <= rows {
                self.tile::<ROWS>(x, row, index, panel, out);
                row += ROWS;
            }
            while row < rows {
                self.tile::<1>(x, row, index, panel, out);
                row += 1;
            }
        }
    }

    #[inline(always)]
    fn tile<const M: usize>(&self, x: &[f32], row: usize, panel_index: usize, panel: &[f32], out: &mut [f32]) {
        let rows: [&[f32]; M] = std::array::from_fn(|m| &x[(row + m) * self.inputs..][..self.inputs]);
        let mut sums = [[0.0; LANES]; M];
        accumulate(rows, panel, &mut sums);
        let column = panel_index * LANES;
        let width = LANES.min(self.outputs - column);
        for (m, sum) in sums.iter().enumerate() {
            out[(row + m) * self.outputs + column..][..width].copy_from_slice(&sum[..width]);
        }
    }
}

/// `sums[m][j] += Σ_k rows[m][k] · panel[k][j]`, k ascending.
#[inline(always)]
pub fn accumulate<const M: usize>(rows: [&[f32]; M], panel: &[f32], sums: &mut [[f32; LANES]; M]) {
    let depth = panel.len() / LANES;
    let rows = rows.map(|row| &row[..depth]);
    let mut local = *sums;
    for (k, weights) in panel.chunks_exact(LANES).enumerate() {
        for m in 0..M {
            let value = rows[m][k];
            for lane in 0..LANES {
                local[m][lane] = value.mul_add(weights[lane], local[m][lane]);
            }
        }
    }
    *sums = local;
}

/// The sum of `f(value)`, first by lanes of the index, then across them: the order depends only on the length.
#[inline(always)]
pub fn sum(values: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] += f(chunk[lane]);
        }
    }
    for (lane, value) in rest.iter().enumerate() {
        lanes[lane] += f(*value);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// `e^x` to about one unit in the last place, with the same bits on every machine; clamped to the range of normal
/// numbers.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    // Adding 1.5·2^23 rounds to an integer and leaves it in the low bits.
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let p = 1.987_569_1e-4_f32;
    let p = p.mul_add(r, 1.398_2e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 0.166_666_65);
    let p = p.mul_add(r, 0.5);
    let p = p.mul_add(r * r, r) + 1.0;
    let power = f32::from_bits(shifted.to_bits().wrapping_shl(23).wrapping_add(127 << 23));
    p * power
}

/// Root-mean-square normalisation of each row of `x`, scaled by `weight`.
#[inline(always)]
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let width = weight.len();
    for (row, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let scale = 1.0 / (sum(row, |value| value * value) / width as f32 + epsilon).sqrt();
        for ((out, value), weight) in out.iter_mut().zip(row).zip(weight) {
            *out = value * scale * weight;
        }
    }
}

/// `silu(gate) · up`, where each row of `gate_up` holds the gates and then the ups.
#[inline(always)]
pub fn gated(gate_up: &[f32], width: usize, out: &mut [f32]) {
    for (row, out) in gate_up.chunks_exact(2 * width).zip(out.chunks_exact_mut(width)) {
        let (gates, ups) = row.split_at(width);
        for ((out, gate), up) in out.iter_mut().zip(gates).zip(ups) {
            *out = gate / (1.0 + exp(-gate)) * up;
        }
    }
}

#[inline(always)]
pub fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

#[cfg(test)]
mod tests;
