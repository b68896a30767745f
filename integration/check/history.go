package check

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Writer appends lines to a history. All methods may be called from any goroutine.
type Writer struct {
	start time.Time
	file  *os.File
	mu    struct {
		sync.Mutex
		buf      *bufio.Writer
		enc      *json.Encoder
		err      error
		lines    int
		observer func(Op)
	}
}

// NewWriter makes the file of a new history.
func NewWriter(name string) (*Writer, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("create the history: %w", err)
	}
	w := &Writer{start: time.Now(), file: f}
	w.mu.buf = bufio.NewWriterSize(f, 1<<20)
	w.mu.enc = json.NewEncoder(w.mu.buf)
	return w, nil
}

// Name returns the path of the file.
func (w *Writer) Name() string { return w.file.Name() }

// Observe has every line that follows given to fn too, in order, with the lock held. One observer at a time.
func (w *Writer) Observe(fn func(Op)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.observer = fn
}

// Log stamps a line with the time and appends it: an invocation before the call is made, a completion after its answer.
// The first failure is kept for Close.
func (w *Writer) Log(o Op) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o.Time = int64(time.Since(w.start)) // below the lock: lines stand in the order of time
	if w.mu.observer != nil {
		w.mu.observer(o)
	}
	if w.mu.err != nil {
		return
	}
	w.mu.err = w.mu.enc.Encode(&o)
	w.mu.lines++
}

// Lines returns the number of lines so far.
func (w *Writer) Lines() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.lines
}

// Close ends the history and returns the first failure of a write.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(w.mu.err, w.mu.buf.Flush(), w.file.Close()); err != nil {
		return fmt.Errorf("write the history %s: %w", w.file.Name(), err)
	}
	return nil
}

// Read returns the lines of a history. A last line without an end, as a killed driver leaves it, is left out; any other
// broken line is an error that names its number.
func Read(r io.Reader) ([]Op, error) {
	var ops []Op
	in := bufio.NewReaderSize(r, 1<<20)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return ops, nil
		}
		if err != nil {
			return ops, fmt.Errorf("read the history: %w", err)
		}
		ops = append(ops, Op{})
		if err := json.Unmarshal(line, &ops[len(ops)-1]); err != nil {
			return ops, fmt.Errorf("read line %d of the history: %w", n, err)
		}
	}
}

// ReadFile is [Read] of a file.
func ReadFile(name string) ([]Op, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read the history: %w", err)
	}
	defer f.Close()
	return Read(f)
}
