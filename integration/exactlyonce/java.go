package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/millrace/millrace/integration/peer"
)

//go:embed pom.xml
var pom []byte

//go:embed WordCount.java
var wordCount []byte

// oldClients is the last release of Apache Kafka's clients that knows the first protocol of transactions only (KIP-890 came with 4.0).
const oldClients = "3.9.1"

// java has the class path of the programs.
type java struct {
	classpath string
	// old says that they are oldClients.
	old bool
}

var pomVersion = regexp.MustCompile(`<kafka.version>[^<]*`)

// openJava fetches the libraries that pom.xml names, or those of oldClients, and compiles our program, once for each content of the two files.
func openJava(ctx context.Context, old bool) (*java, error) {
	pom := pom
	if old {
		pom = pomVersion.ReplaceAll(pom, []byte("<kafka.version>"+oldClients))
	}
	for _, tool := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%w: %s is missing", peer.ErrNoToolchain, tool)
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	libraries, err := fill(ctx, filepath.Join(cache, "millrace-exactlyonce"), "libraries", pom, func(ctx context.Context, dir string) ([]byte, error) {
		file := filepath.Join(dir, "pom.xml")
		if err := os.WriteFile(file, pom, 0o644); err != nil {
			return nil, err
		}
		return exec.CommandContext(ctx, "mvn", "-q", "-B", "-f", file, "dependency:copy-dependencies", "-DoutputDirectory="+dir).CombinedOutput()
	})
	if err != nil {
		return nil, fmt.Errorf("fetch Kafka Streams with Maven: %w", err)
	}
	jars := filepath.Join(libraries, "*")
	classes, err := fill(ctx, filepath.Join(cache, "millrace-exactlyonce"), "classes", append(append([]byte{}, pom...), wordCount...), func(ctx context.Context, dir string) ([]byte, error) {
		file := filepath.Join(dir, "WordCount.java")
		if err := os.WriteFile(file, wordCount, 0o644); err != nil {
			return nil, err
		}
		return exec.CommandContext(ctx, "javac", "-Xlint:all,-processing,-classfile", "-Werror", "-cp", jars, "-d", dir, file).CombinedOutput()
	})
	if err != nil {
		return nil, fmt.Errorf("compile the word count: %w", err)
	}
	return &java{classpath: jars + ":" + classes, old: old}, nil
}

// config is the flag by which the verifiable programs are given a file of properties.
func (j *java) config(kind string) string {
	if j.old {
		return "--" + kind + ".config"
	}
	return "--command-config"
}

// fill returns a folder for some inputs, which make fills when it is new. Several runs may want it at once.
func fill(ctx context.Context, below, kind string, inputs []byte, make func(ctx context.Context, dir string) ([]byte, error)) (string, error) {
	sum := sha256.Sum256(inputs)
	dir := filepath.Join(below, kind+"-"+hex.EncodeToString(sum[:8]))
	if err := os.MkdirAll(below, 0o755); err != nil {
		return "", err
	}
	lock, err := os.Create(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	done := filepath.Join(dir, ".complete")
	if _, err := os.Stat(done); err == nil {
		return dir, nil
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute)
	defer cancel()
	if out, err := make(ctx, dir); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return dir, os.WriteFile(done, nil, 0o644)
}

// command is the command line of a class. The heap is small and the compiler quick: many of them share a machine with the brokers.
func (j *java) command(class string, args ...string) []string {
	return append([]string{
		"java", "-Xmx160m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
		"-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS", "-cp", j.classpath, class,
	}, args...)
}
