//go:build !linux

package raftlog

func (f diskFile) sync() error { return f.Sync() }
