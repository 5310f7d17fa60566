// Gradient descent on word vectors with negative sampling, some words at a time; word_updates.py says what is computed.
//
// The words of a chunk read the vectors as they were before it, and change them in the order of the batch. One thread
// does it: threads that share a chunk would wait for one another every few microseconds.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

namespace {

struct Words {  // as in word_updates.py
  const int32_t *centre, *around, *noise;
  const uint8_t *mask;
  int64_t count, places, negatives;
};

struct Tables {
  float *words, *around;
  int64_t width;
};

// The rows that one word of a chunk reads, and what it adds to them: `change` to its inputs, step x `known` to targets.
struct Found {
  int32_t *inputs, *targets;  // [places], [places + negatives]
  float *steps;               // [places + negatives]
  float *known, *change;      // [width]
  int64_t input_count, right, target_count;
};

// to += Σ scale[i] · table[rows[i]], four rows at a time: `to` is read and written a quarter as often.
inline void gather(float *to, const float *table, const int32_t *rows, const float *scale, int64_t count, int64_t width) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const float *a = table + rows[i] * width, *b = table + rows[i + 1] * width;
    const float *c = table + rows[i + 2] * width, *d = table + rows[i + 3] * width;
    const float s = scale[i], t = scale[i + 1], u = scale[i + 2], v = scale[i + 3];
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) to[j] += s * a[j] + t * b[j] + u * c[j] + v * d[j];
  }
  for (; i < count; ++i) {
    const float *a = table + rows[i] * width, s = scale[i];
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) to[j] += s * a[j];
  }
}

// scores[i] = x · table[rows[i]], four rows at a time, so that no sum waits for its last addition.
inline void match(float *scores, const float *x, const float *table, const int32_t *rows, int64_t count, int64_t width) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const float *a = table + rows[i] * width, *b = table + rows[i + 1] * width;
    const float *c = table + rows[i + 2] * width, *d = table + rows[i + 3] * width;
    float s = 0, t = 0, u = 0, v = 0;
#pragma omp simd reduction(+ : s, t, u, v)
    for (int64_t j = 0; j < width; ++j) s += x[j] * a[j], t += x[j] * b[j], u += x[j] * c[j], v += x[j] * d[j];
    scores[i] = s, scores[i + 1] = t, scores[i + 2] = u, scores[i + 3] = v;
  }
  for (; i < count; ++i) {
    const float *a = table + rows[i] * width;
    float s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t j = 0; j < width; ++j) s += x[j] * a[j];
    scores[i] = s;
  }
}

inline void add(float *to, float scale, const float *from, int64_t width) {
#pragma omp simd
  for (int64_t j = 0; j < width; ++j) to[j] += scale * from[j];
}

void list_rows(const Words &batch, int64_t row, bool bag, Found &found) {
  const int32_t *around = batch.around + row * batch.places, *noise = batch.noise + row * batch.negatives;
  const uint8_t *mask = batch.mask + row * batch.places;
  int32_t *neighbours = bag ? found.inputs : found.targets;
  int64_t count = 0;
  for (int64_t place = 0; place < batch.places; ++place) {
    neighbours[count] = around[place];
    count += mask[place];
  }
  (bag ? found.targets : found.inputs)[0] = batch.centre[row];
  found.input_count = bag ? count : 1;
  found.right = found.target_count = count == 0 ? 0 : bag ? 1 : count;
  if (count == 0) return;  // a word without neighbours teaches nothing
  for (int64_t k = 0; k < batch.negatives; ++k) {
    bool is_true = false;
    for (int64_t i = 0; i < found.right; ++i) is_true |= found.targets[i] == noise[k];
    found.targets[found.target_count] = noise[k];
    found.target_count += !is_true;
  }
}

// The loss of a word. Fills in `found`; reads the tables, and changes nothing else.
float compute(const Words &batch, const Tables &tables, int64_t row, bool bag, float rate, Found &found) {
  const int64_t width = tables.width;
  list_rows(batch, row, bag, found);
  const int64_t count = found.target_count, right = found.right;
  if (count == 0) return 0;
  float *steps = found.steps;
  std::fill_n(found.known, width, 0.0f);
  std::fill_n(steps, found.input_count, 1.0f / static_cast<float>(found.input_count));
  gather(found.known, tables.words, found.inputs, steps, found.input_count, width);
  match(steps, found.known, tables.around, found.targets, count, width);
  float loss = 0;
#pragma omp simd reduction(+ : loss)
  for (int64_t i = 0; i < count; ++i) {
    const float score = steps[i], small = std::exp(-std::fabs(score));  // in (0, 1]: no overflow
    const float likely = (score > 0 ? 1.0f : small) / (1.0f + small);   // σ(score)
    const float label = i < right ? 1.0f : 0.0f, weight = i < right ? 1.0f : static_cast<float>(right);
    const float wrong = i < right ? -score : score;  // the loss is log(1 + exp(wrong))
    loss += weight * (std::max(wrong, 0.0f) + std::log(1.0f + small));
    steps[i] = rate * weight * (label - likely);
  }
  std::fill_n(found.change, width, 0.0f);
  gather(found.change, tables.around, found.targets, steps, count, width);
  return loss;
}

// Change the rows that a word has read.
void apply(const Found &found, const Tables &tables) {
  if (found.target_count == 0) return;
  const int64_t width = tables.width;
  for (int64_t i = 0; i < found.target_count; ++i)
    add(tables.around + found.targets[i] * width, found.steps[i], found.known, width);
  const float share = 1.0f / static_cast<float>(found.input_count);
  for (int64_t i = 0; i < found.input_count; ++i)
    add(tables.words + found.inputs[i] * width, share, found.change, width);
}

// Room for the words of a chunk, in three blocks of memory.
struct Room {
  std::unique_ptr<Found[]> found;
  std::unique_ptr<int32_t[]> rows;
  std::unique_ptr<float[]> numbers;

  Room(const Words &batch, int64_t width, int64_t words) {
    const int64_t most = batch.places + batch.negatives + 1, numbers_each = most + 2 * width;
    found = std::make_unique<Found[]>(words);
    rows = std::make_unique<int32_t[]>(words * 2 * most);
    numbers = std::make_unique<float[]>(words * numbers_each);
    for (int64_t word = 0; word < words; ++word) {
      int32_t *ids = rows.get() + word * 2 * most;
      float *first = numbers.get() + word * numbers_each;
      found[word] = {ids, ids + most, first + 2 * width, first, first + width, 0, 0, 0};
    }
  }
};

}  // namespace

// Returns the summed loss. The losses are those before each chunk.
extern "C" double learn(const Words *batch, const Tables *tables, int64_t chunk, int32_t bag, float rate) {
  const Room room(*batch, tables->width, std::min(chunk, batch->count));
  double total = 0;
  for (int64_t first = 0; first < batch->count; first += chunk) {
    const int64_t last = std::min(first + chunk, batch->count);
    for (int64_t row = first; row < last; ++row)
      total += compute(*batch, *tables, row, bag, rate, room.found[row - first]);
    for (int64_t row = first; row < last; ++row) apply(room.found[row - first], *tables);
  }
  return total;
}
