// Not a breach: abort() in a comment, or the word in a text, or a name that ends in it.
const char* text = "exit(1)";
void will_exit(int);
void fine() { will_exit(1); }

void leave() { std::exit(1); }
void fall() { abort(); }
void say() { std::cout << 1; }
void complain() { fprintf(stderr, "no"); }
void name() { puts("no"); }
void raw() { ::write(2, text, 1); }
