// Package limit bounds what a caller, an address or a host costs: with [Buckets] how much in a
// second, with a [Queue] or a [Memory] how much at one time.
package limit

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Rate is that of a token bucket: PerSecond units on average, Burst at once.
type Rate struct {
	PerSecond float64
	Burst     int
}

// Buckets are token buckets by key. Each method takes the key's rate: a bucket whose rate changes
// is full, and so is one that was forgotten. Methods are safe for concurrent use.
type Buckets[K comparable] struct {
	now func() time.Time

	mu    sync.Mutex
	byKey *simplelru.LRU[K, *bucket] // guarded by mu
}

// bucket is the token bucket of a key.
type bucket struct {
	rate Rate
	left float64   // negative: a debt
	at   time.Time // when left was counted
}

// NewBuckets returns buckets that remember the keys that were used last, as many as keys says.
func NewBuckets[K comparable](keys int, now func() time.Time) *Buckets[K] {
	byKey, err := simplelru.NewLRU[K, *bucket](keys, nil)
	if err != nil {
		panic(err) // keys is a positive constant
	}
	return &Buckets[K]{now: now, byKey: byKey}
}

// Level is what a bucket holds at a moment.
type Level struct {
	Rate
	Left float64 // units; negative: a debt
}

// Wait is the time until the bucket holds units.
func (l Level) Wait(units int) time.Duration {
	return time.Duration(float64(time.Second) * (float64(units) - l.Left) / l.PerSecond)
}

// Level returns what the bucket holds.
func (b *Buckets[K]) Level(key K, r Rate) Level {
	return b.change(key, r, func(*bucket) {})
}

// Take takes units, or all if the bucket is smaller. If it holds less, it takes nothing and returns
// false.
func (b *Buckets[K]) Take(key K, r Rate, units int) (left Level, ok bool) {
	n := float64(min(units, r.Burst))
	left = b.change(key, r, func(k *bucket) {
		if ok = k.left >= n; ok {
			k.left -= n
		}
	})
	return left, ok
}

// Charge takes units even if the bucket holds less. The debt is at most a whole bucket.
func (b *Buckets[K]) Charge(key K, r Rate, units int) Level {
	return b.change(key, r, func(k *bucket) { k.left = max(k.left-float64(units), -float64(r.Burst)) })
}

// Give gives units back.
func (b *Buckets[K]) Give(key K, r Rate, units int) {
	b.change(key, r, func(k *bucket) { k.left = min(k.left+float64(units), float64(r.Burst)) })
}

// Len returns how many keys are remembered.
func (b *Buckets[K]) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.byKey.Len()
}

// change changes the bucket of a key, with what has flowed into it until now.
func (b *Buckets[K]) change(key K, r Rate, change func(*bucket)) Level {
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	k, ok := b.byKey.Get(key)
	if !ok || k.rate != r {
		k = &bucket{rate: r, left: float64(r.Burst), at: now}
		b.byKey.Add(key, k)
	}
	if passed := now.Sub(k.at); passed > 0 {
		k.left = min(float64(r.Burst), k.left+passed.Seconds()*r.PerSecond)
		k.at = now
	}
	change(k)
	return Level{r, k.left}
}
