package main

import (
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progressDelay is how long work goes on before its bar appears: what is over in a moment needs none.
const progressDelay = time.Second

// progress is a bar on stderr for work whose size is known. Without a terminal, and with --quiet, it is nil, and its
// methods do nothing.
type progress struct {
	env   *env
	what  string
	total int64
	began time.Time
	bars  *mpb.Progress
	bar   *mpb.Bar
	done  int64
}

// newProgress prepares a bar; nothing is shown before progressDelay.
func (e *env) newProgress(what string, total int64) *progress {
	if e.quiet || total <= 0 || !terminal(e.stderr) {
		return nil
	}
	return &progress{env: e, what: what, total: total, began: time.Now()}
}

// add counts n more pieces of work.
func (p *progress) add(n int64) {
	if p == nil {
		return
	}
	p.done += n
	if p.bar == nil {
		if time.Since(p.began) < progressDelay {
			return
		}
		p.bars = mpb.New(mpb.WithOutput(p.env.stderr), mpb.WithWidth(40))
		p.bar = p.bars.AddBar(p.total, mpb.BarRemoveOnComplete(),
			mpb.PrependDecorators(decor.Name(p.what+" ")),
			mpb.AppendDecorators(decor.Percentage(), decor.Name("  "), decor.AverageETA(decor.ET_STYLE_GO)))
	}
	p.bar.SetCurrent(min(p.done, p.total))
}

// finish takes the bar away.
func (p *progress) finish() {
	if p == nil || p.bar == nil {
		return
	}
	p.bar.Abort(true)
	p.bars.Wait()
}
