/* A run-time compiler that compiles nothing: its result is the source, the headers and the options, a line each.
   PREFIX and CODE give its functions' names. A source with "error" in it does not compile. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOIN(a, b) a##b
#define EXPAND(a, b) JOIN(a, b)
#define NAME(x) EXPAND(PREFIX, x)

struct program {
  char text[1 << 16];
  int bad;
};
int alive;

int NAME(Version)(int* major, int* minor) {
  *major = 12, *minor = 8;
  return 0;
}

int NAME(CreateProgram)(struct program** program, const char* source, const char* name, int headers, const char** texts,
                        const char** names) {
  *program = calloc(1, sizeof **program);
  alive++;
  char* at = (*program)->text;
  at += sprintf(at, "%s: %s\n", name, source);
  for (int i = 0; i < headers; i++) at += sprintf(at, "%s: %s\n", names[i], texts[i]);
  (*program)->bad = strstr(source, "error") != NULL;
  return 0;
}

int NAME(CompileProgram)(struct program* program, int count, const char** options) {
  for (int i = 0; i < count; i++) sprintf(program->text + strlen(program->text), "%s\n", options[i]);
  return program->bad ? 6 : 0;
}

static const char* LOG = "1: error: as you wish";
int NAME(GetProgramLogSize)(struct program* program, size_t* size) { return *size = strlen(LOG) + 1, !program; }
int NAME(GetProgramLog)(struct program* program, char* log) { return strcpy(log, LOG), !program; }
int EXPAND(NAME(Get), EXPAND(CODE, Size))(struct program* program, size_t* size) {
  return *size = strlen(program->text), 0;
}
int EXPAND(NAME(Get), CODE)(struct program* program, char* code) {
  return memcpy(code, program->text, strlen(program->text)), 0;
}
int NAME(DestroyProgram)(struct program** program) {
  free(*program);
  *program = NULL;
  alive--;
  return 0;
}
const char* NAME(GetErrorString)(int status) { return status == 6 ? "double: compilation" : "double: unknown"; }
