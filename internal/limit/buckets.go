// Package limit bounds what a caller, an address or a host costs. [Buckets] bound the cost per
// second. A [Queue] or a [Memory] bounds the cost at one time.
package limit

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Rate is the rate of a token bucket: PerSecond units on average, Burst at once.
type Rate struct {
	PerSecond float64
	Burst     int
}

// Buckets are token buckets by key. Each method takes the key's rate. If the rate of a bucket
// changes, the bucket is full. A forgotten bucket is full too. Methods are safe for concurrent use.
type Buckets[K comparable] struct {
	now func() time.Time

	mu    sync.Mutex
	byKey *simplelru.LRU[K, *bucket] // guarded by mu
}

// bucket is the token bucket of a key.
type bucket struct {
	rate Rate
	left float64   // units; negative means a debt
	at   time.Time // when left was counted
}

// NewBuckets returns buckets that remember as many keys as keys says: the keys that were used last.
func NewBuckets[K comparable](keys int, now func() time.Time) *Buckets[K] {
	byKey, err := simplelru.NewLRU[K, *bucket](keys, nil)
	if err != nil {
		panic(err) // keys is a positive constant
	}
	return &Buckets[K]{now: now, byKey: byKey}
}

// Level is the content of a bucket at one moment.
type Level struct {
	Rate
	Left float64 // units; negative means a debt
}

// Wait returns the time until the bucket holds units.
func (l Level) Wait(units int) time.Duration {
	return time.Duration(float64(time.Second) * (float64(units) - l.Left) / l.PerSecond)
}

// Level returns the content of the bucket.
func (b *Buckets[K]) Level(key K, r Rate) Level {
	return b.change(key, r, func(*bucket) {})
}

// Take takes units from the bucket, or all if the bucket is smaller than units. If the bucket holds
// less, Take takes nothing and returns false.
func (b *Buckets[K]) Take(key K, r Rate, units int) (left Level, ok bool) {
	n := float64(min(units, r.Burst))
	left = b.change(key, r, func(k *bucket) {
		if ok = k.left >= n; ok {
			k.left -= n
		}
	})
	return left, ok
}

// Charge takes units even if the bucket holds less. The debt is at most the size of the bucket.
func (b *Buckets[K]) Charge(key K, r Rate, units int) Level {
	return b.change(key, r, func(k *bucket) { k.left = max(k.left-float64(units), -float64(r.Burst)) })
}

// Give returns units to the bucket.
func (b *Buckets[K]) Give(key K, r Rate, units int) {
	b.change(key, r, func(k *bucket) { k.left = min(k.left+float64(units), float64(r.Burst)) })
}

// Len returns how many keys are remembered.
func (b *Buckets[K]) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.byKey.Len()
}

// change adds the units of the time since the last change to a key's bucket, and then calls change.
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
